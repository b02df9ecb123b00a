package api

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// openapi loads the description of the API, which must be valid by itself.
func openapi(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		t.Fatalf("openapi.yaml is no OpenAPI document: %v", err)
	}
	return doc
}

// described are the parameters of each operation by their place: "GET /path" to
// "query" to names.
func described(doc *openapi3.T) map[string]map[string][]string {
	all := map[string]map[string][]string{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			places := map[string][]string{}
			for _, ref := range slices.Concat(item.Parameters, op.Parameters) {
				places[ref.Value.In] = append(places[ref.Value.In], ref.Value.Name)
			}
			all[method+" "+path] = places
		}
	}
	return all
}

// templatePath writes a router's template as OpenAPI does.
func templatePath(template string) (path string, params []string) {
	parts := strings.Split(template, "/")
	for i, p := range parts {
		if name, ok := strings.CutPrefix(p, ":"); ok {
			params = append(params, name)
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/"), params
}

// api/openapi.yaml has the routes of the router and no others, each with the
// parameters that its handler takes and no others.
func TestOpenAPIHasTheRoutes(t *testing.T) {
	have := described(openapi(t))
	for _, rt := range (&Server{}).routes() {
		path, params := templatePath(rt.template)
		name := rt.method + " " + path
		places, ok := have[name]
		if !ok {
			t.Errorf("openapi.yaml does not have %s", name)
			continue
		}
		delete(have, name)
		for place, want := range map[string][]string{"query": rt.params, "path": params} {
			got := slices.Sorted(slices.Values(places[place]))
			if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
				t.Errorf("%s: openapi.yaml has the %s parameters %q, the router %q", name, place, got, want)
			}
		}
		needsClient := rt.method == http.MethodPost || rt.method == http.MethodPatch || rt.method == http.MethodPut
		if has := slices.Contains(places["header"], "X-Tidemark-Client"); needsClient && !has {
			t.Errorf("%s: openapi.yaml does not have the header X-Tidemark-Client", name)
		}
	}
	for name := range have {
		t.Errorf("openapi.yaml has %s, which is no route", name)
	}
}

// Codes and statuses of errors, fields of topics and bounds stand in
// api/openapi.yaml as they stand in the code.
func TestOpenAPIHasTheCodesAndBounds(t *testing.T) {
	doc := openapi(t)
	schemas := doc.Components.Schemas
	var names []string
	for _, c := range allCodes(t) {
		names = append(names, c.String())
	}
	var got []string
	for _, v := range schemas["Error"].Value.Properties["code"].Value.Enum {
		got = append(got, v.(string))
	}
	if !slices.Equal(got, names) {
		t.Errorf("openapi.yaml has the codes %q, errcode %q", got, names)
	}
	for name, r := range doc.Components.Responses {
		for _, word := range strings.FieldsFunc(*r.Value.Description, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
			if strings.Contains(word, "_") && !slices.Contains(names, word) && schemas["Error"].Value.Properties[word] == nil {
				t.Errorf("the response %s speaks of %s, which is no code", name, word)
			}
		}
	}
	fields := slices.Sorted(maps.Keys(schemas["TopicSpec"].Value.Properties))
	if want := slices.Sorted(slices.Values(specFields)); !slices.Equal(fields, want) {
		t.Errorf("openapi.yaml has the fields %q of a new topic, the handler %q", fields, want)
	}
	l := DefaultLimits()
	for _, b := range []struct {
		name string
		got  *uint64
		want int
	}{
		{"records of a batch", schemas["Batch"].Value.Properties["messages"].Value.MaxItems, l.BatchRecords},
		{"headers of a record", schemas["NewRecord"].Value.Properties["headers"].Value.MaxItems, l.RecordHeaders},
		{"receipt handles of an ack", schemas["Handles"].Value.Properties["receipt_handles"].Value.MaxItems, l.AckHandles},
	} {
		if b.got == nil || *b.got != uint64(b.want) {
			t.Errorf("openapi.yaml does not have the bound %d of the %s", b.want, b.name)
		}
	}
	if most := doc.Components.Parameters["consumeMax"].Value.Schema.Value.Max; most == nil || int(*most) != l.ConsumeRecords {
		t.Error("openapi.yaml has another bound of max than a consume")
	}
}
