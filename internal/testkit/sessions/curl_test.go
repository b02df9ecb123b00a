package sessions

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const httpPage = "docs/http-api.md"

// examples are the curl lines of docs/http-api.md, in order.
func examples(text string) (list []string) {
	joined := strings.ReplaceAll(text, " \\\n     ", " ")
	for line := range strings.Lines(joined) {
		if command, ok := strings.CutPrefix(line, "    curl "); ok {
			list = append(list, "curl "+strings.TrimSpace(command))
		}
	}
	return list
}

// Every curl line of docs/http-api.md works as it stands: in the order of the
// page, each is answered with a success. What the page takes for granted is
// there: files to send, and receipt handles of leased records.
func TestCurlExamples(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(module, httpPage))
	if err != nil {
		t.Fatal(err)
	}
	list := examples(string(text))
	if len(list) < 12 {
		t.Fatalf("%s has %d curl lines", httpPage, len(list))
	}
	p := newPlace(t)
	p.serve()
	for name, content := range map[string]string{"photo.jpg": "\xff\xd8\xff\xe0", "state.json": "{}", "events.ndjson": `{"user":"u1","n":1}` + "\n" + `{"user":"u2","n":2}` + "\n"} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.env = append(p.env, "B="+p.node.Base, "C=X-Tidemark-Client: curl")
	ran := 0
	for _, line := range list {
		line = strings.Replace(line, "curl ", "curl --fail-with-body ", 1)
		switch {
		case strings.Contains(line, "-X DELETE"):
			continue // at the end
		case strings.Contains(line, "expected_offset=5120"):
			line = strings.Replace(line, "=5120", "="+p.run(`curl "$B/v1/topics/orders?partition=0" | sed 's/.*"next_offset":\([0-9]*\).*/\1/' | tr -d '\n'`), 1)
		case strings.Contains(line, "$H1"):
			p.lease("H1", "H2")
		case strings.Contains(line, "$H"):
			p.lease("H")
		}
		if strings.Contains(line, "&follow") {
			if got := p.firstLine(line); !json.Valid([]byte(got)) {
				t.Errorf("$ %s\n%s", line, got)
			}
		} else {
			p.run(line)
		}
		ran++
	}
	for _, line := range list {
		if strings.Contains(line, "-X DELETE") {
			p.run(strings.Replace(line, "curl ", "curl --fail-with-body ", 1))
			ran++
		}
	}
	if ran != len(list) {
		t.Errorf("%d of %d examples ran", ran, len(list))
	}
}

// lease produces records and puts the receipt handles of as many into variables.
func (p *place) lease(names ...string) {
	p.t.Helper()
	for _, name := range names {
		p.run(`curl --fail-with-body -H "$C" "$B/v1/topics/orders/produce?ack=committed" --data-binary x`)
		var m struct {
			Handle string `json:"receipt_handle"`
		}
		got := p.run(`curl --fail-with-body -H "$C" "$B/v1/topics/orders/consume?wait=10s"`)
		if err := json.Unmarshal([]byte(got), &m); err != nil || m.Handle == "" {
			p.t.Fatalf("no receipt handle in %q: %v", got, err)
		}
		p.env = append(p.env, name+"="+m.Handle)
	}
}

// The answers that docs/http-api.md shows have the fields of real ones, in their
// order; the error is shown to the letter.
func TestShownAnswers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(module, httpPage))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for i, part := range strings.Split(string(text), "```json\n") {
		if i > 0 {
			block, _, _ := strings.Cut(part, "```")
			blocks = append(blocks, block)
		}
	}
	p := newPlace(t)
	p.serve()
	p.env = append(p.env, "B="+p.node.Base, "C=X-Tidemark-Client: curl")
	p.run(`curl --fail-with-body -H "$C" $B/v1/topics -d '{"name":"orders","partitions":1}'`)
	p.run(`curl --fail-with-body -H "$C" -H 'Tidemark-Header-Trace: 7f3a' -H 'Content-Type: application/json' "$B/v1/topics/orders/produce?key=u17&ack=committed" --data-binary '{"total": 12.50}'`)
	p.run(`curl --fail-with-body -H "$C" -H 'Content-Type: application/json' "$B/v1/topics/orders/produce?key=u17&ack=committed" --data-binary '{"n":1}'`)
	real := []string{ // one for each answer that is shown
		p.run(`curl $B/v1/topics/nope`),
		p.run(`curl --fail-with-body "$B/v1/topics/orders/consume"`),
		p.run(`curl --fail-with-body "$B/v1/topics/orders/partitions/0/records?from=1"`),
		lines(p.run(`curl --fail-with-body -H 'Accept: application/x-ndjson' "$B/v1/topics/orders/partitions/0/records?from=2"`))[0],
	}
	if len(blocks) < len(real) {
		t.Fatalf("%s shows %d answers, the test knows %d", httpPage, len(blocks), len(real))
	}
	if strings.TrimSpace(blocks[0]) != strings.TrimSpace(real[0]) {
		t.Errorf("%s shows %s, it is %s", httpPage, blocks[0], real[0])
	}
	for _, block := range blocks {
		want := fieldsOf(t, block)
		if !slices.ContainsFunc(real, func(answer string) bool { return slices.Equal(want, fieldsOf(t, answer)) }) {
			t.Errorf("%s shows an answer with %q, which none of the test's has: %s", httpPage, want, block)
		}
	}
}

// fieldsOf are the names in a JSON text, in order, without those in payloads.
func fieldsOf(t *testing.T, text string) (names []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	var walk func(deep bool)
	walk = func(deep bool) {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		switch token {
		case json.Delim('{'):
			for d.More() {
				name, err := d.Token()
				if err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				if deep {
					names = append(names, name.(string))
				}
				walk(deep && name != "payload")
			}
		case json.Delim('['):
			for d.More() {
				walk(deep)
			}
		default:
			return
		}
		if _, err := d.Token(); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	walk(true)
	return names
}
