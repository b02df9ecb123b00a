package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// described holds real answers against api/openapi.yaml.
type described struct {
	doc *openapi3.T

	mu     sync.Mutex
	seen   map[string]int // "POST /v1/topics 201" -> answers that were checked
	faults []string
}

// mostChecked bounds how often the same kind of answer is checked.
const mostChecked = 50

func load(t *testing.T) *described {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Whoever reads an answer must allow for more fields; what the document says
	// today is complete, though.
	closed := false
	for name, s := range doc.Components.Schemas {
		if s.Value.Type.Is("object") && s.Value.AdditionalProperties.Has == nil {
			s.Value.AdditionalProperties.Has = &closed
		}
		if s.Value.Type.Is("object") && len(s.Value.Properties) == 0 {
			t.Errorf("the schema %s has no properties", name)
		}
	}
	for _, kind := range []string{"application/x-ndjson", "text/event-stream", "application/vnd.tidemark.frames", "application/vnd.kafka.record-batch"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
	return &described{doc: doc, seen: map[string]int{}}
}

// route finds the operation of a request.
func (d *described) route(method, path string) *routers.Route {
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	for template, item := range d.doc.Paths.Map() {
		want := strings.Split(template, "/")
		if len(want) != len(parts) {
			continue
		}
		same := true
		for i := range want {
			same = same && (strings.HasPrefix(want[i], "{") || want[i] == parts[i])
		}
		if op := item.GetOperation(method); same && op != nil {
			return &routers.Route{Spec: d.doc, Path: template, PathItem: item, Method: method, Operation: op}
		}
	}
	return nil
}

// observe checks one exchange.
func (d *described) observe(req *http.Request, _ []byte, res *http.Response, got []byte) {
	route := d.route(req.Method, req.URL.Opaque)
	if route == nil {
		return // no route: the suite has looked at the error
	}
	kind := fmt.Sprintf("%s %s %d", req.Method, route.Path, res.StatusCode)
	d.mu.Lock()
	d.seen[kind]++
	enough := d.seen[kind] > mostChecked
	d.mu.Unlock()
	if enough || bytes.Contains(got, []byte("1e999999999")) {
		return // or a number that the checker cannot hold
	}
	if err := d.check(route, req, res, got); err != nil {
		d.mu.Lock()
		d.faults = append(d.faults, fmt.Sprintf("%s: %v\n\t%.300s", kind, err, got))
		d.mu.Unlock()
	}
}

func (d *described) check(route *routers.Route, req *http.Request, res *http.Response, got []byte) error {
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/x-ndjson") {
		if err := d.lines(got); err != nil {
			return err
		}
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, Route: route},
		Status:                 res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(got)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	return openapi3filter.ValidateResponse(context.Background(), in)
}

// lines checks the lines of a stream, the last of which ends it.
func (d *described) lines(body []byte) error {
	all := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	for i, line := range all {
		schema := "LogRecord"
		if i == len(all)-1 {
			schema = "StreamEnd"
		}
		var v any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			return fmt.Errorf("line %d: %w", i, err)
		}
		if err := d.doc.Components.Schemas[schema].Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
			return fmt.Errorf("line %d is no %s: %w", i, schema, err)
		}
	}
	return nil
}

// report fails for what was wrong, and for successes that no case has seen.
func (d *described) report(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.faults {
		t.Error(f)
	}
	for path, item := range d.doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if kind := method + " " + path + " " + status; strings.HasPrefix(status, "2") && d.seen[kind] == 0 {
					t.Errorf("no case has seen %s, which openapi.yaml describes", kind)
				}
			}
		}
	}
}

// The check itself notices what it is for: a status, a field or a type that the
// document does not have, and a field that is missing.
func TestDescriptionNoticesDifferences(t *testing.T) {
	d := load(t)
	for answer, fine := range map[string]bool{
		`200 {"topic":"t","partition":0,"offset":0}`:         true,
		`200 {"topic":"t","partition":0,"offset":0,"new":1}`: false,
		`200 {"topic":"t","partition":0}`:                    false,
		`200 {"topic":"t","partition":"0","offset":0}`:       false,
		`200 []`: false,
		`418 {"error":"x","code":"internal","retry":"never"}`: false,
		`400 {"error":"x","code":"nonsense","retry":"never"}`: false,
		`400 {"error":"x","code":"internal","retry":"never"}`: true,
	} {
		status, body := 0, ""
		if _, err := fmt.Sscanf(answer, "%d", &status); err != nil {
			t.Fatal(err)
		}
		body = answer[4:]
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://x", nil)
		if err != nil {
			t.Fatal(err)
		}
		res := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}}
		route := d.route("GET", "/v1/topics/t/partitions/0/offset")
		if err := d.check(route, req, res, []byte(body)); (err == nil) != fine {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
