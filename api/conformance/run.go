package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// stepMax bounds one exchange, and how long one is repeated: far more than any
// takes on a busy machine.
const stepMax = time.Minute

// family is a table of cases.
type family struct {
	name  string
	cases []Case
}

// families are all cases for a target.
func families(t *Target) []family {
	l := t.limits()
	return []family{
		{"paths", pathCases()},
		{"methods", methodCases()},
		{"guard", guardCases()},
		{"credentials", credentialCases()},
		{"queries", queryCases()},
		{"topics", topicCases()},
		{"produce", produceCases()},
		{"batches", batchCases()},
		{"kafka", kafkaCases()},
		{"consume", consumeCases()},
		{"settle", settleCases()},
		{"records", recordCases()},
		{"operate", operateCases()},
		{"later", laterCases()},
		{"wire", wireCases(l)},
		{"bounds", boundCases(l)},
	}
}

// fits says whether a target can show a case.
func (c *Case) fits(t *Target) bool {
	return (!c.Secured || t.User != "") && (!c.Archive || t.Archived)
}

// Run runs every case that the target can show, as subtests.
func Run(t *testing.T, target Target) {
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 4, ExpectContinueTimeout: stepMax}
	t.Cleanup(transport.CloseIdleConnections)
	c := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	start := func(t *testing.T, cs *Case) {
		r := &run{t: t, target: &target, client: c, vars: map[string]string{}}
		r.one(cs)
	}
	all := families(&target)
	// The group ends when its parallel cases have ended.
	t.Run("beside", func(t *testing.T) {
		eachCase(all, &target, false, func(family string, cs *Case) {
			t.Run(family+"/"+cs.Rule, func(t *testing.T) { t.Parallel(); start(t, cs) })
		})
	})
	eachCase(all, &target, true, func(_ string, cs *Case) {
		transport.CloseIdleConnections()
		t.Run("alone/"+cs.Rule, func(t *testing.T) { start(t, cs) })
	})
}

// eachCase calls do with every case that the target can show, those that run
// alone or those that do not.
func eachCase(all []family, target *Target, alone bool, do func(family string, cs *Case)) {
	for _, f := range all {
		for i := range f.cases {
			if cs := &f.cases[i]; cs.fits(target) && cs.Alone == alone {
				do(f.name, cs)
			}
		}
	}
}

// run is a case that runs.
type run struct {
	t      *testing.T
	target *Target
	client *http.Client

	mu   sync.Mutex
	vars map[string]string
	made []string // paths of topics
}

func (r *run) one(c *Case) {
	r.vars["host"] = r.target.host()
	if r.target.User != "" {
		req := &http.Request{Header: http.Header{}}
		req.SetBasicAuth(r.target.User, r.target.Password)
		r.vars["auth"] = "Authorization: " + req.Header.Get("Authorization") + "\r\n"
	} else {
		r.vars["auth"] = ""
	}
	r.t.Cleanup(r.clean)
	r.vars["t"] = "conf-" + strings.ToLower(rand.Text()[:12])
	settings := c.Topic
	if settings == "" {
		settings = `"partitions":3`
	}
	postJSON("/v1/topics", `{"name":"{t}",`+settings+`}`).is(201).do(r)
	for i, s := range c.Steps {
		if r.t.Failed() {
			r.t.Fatalf("the case ends at step %d of %d", i, len(c.Steps))
		}
		s.do(r)
	}
}

// clean deletes what the case has made.
func (r *run) clean() {
	for _, path := range r.made {
		// Those that are gone already have been deleted by their case.
		ctx, cancel := context.WithTimeout(context.Background(), stepMax)
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, r.target.base()+path+"?force", nil)
		if err == nil {
			req.SetBasicAuth(r.target.User, r.target.Password)
			var res *http.Response
			if res, err = r.client.Do(req); err == nil {
				res.Body.Close()
			}
		}
		cancel()
		if err != nil {
			r.t.Errorf("delete %s: %v", path, err)
		}
	}
}

var placeholder = regexp.MustCompile(`\{[a-z][a-z0-9]*\}`)

// name replaces names in a text.
func (r *run) name(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(text) > 1<<16 {
		return text // filling
	}
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		if v, ok := r.vars[p[1:len(p)-1]]; ok {
			return v
		}
		return p
	})
}

func (r *run) keep(name, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vars[name] = value
}

// do implements Step.
func (b Beside) do(r *run) {
	var all sync.WaitGroup
	for _, s := range b {
		all.Go(func() { s.do(r) })
	}
	all.Wait()
}

// do implements Step.
func (q Request) do(r *run) {
	for deadline := time.Now().Add(stepMax); ; {
		faults := q.once(r)
		if len(faults) == 0 {
			return
		}
		if !q.eventually || time.Now().After(deadline) {
			r.t.Errorf("%s %s\n\t%s", q.method, r.name(q.path), strings.Join(faults, "\n\t"))
			return
		}
		r.pause()
	}
}

// pause is the time between two looks at something that takes a while.
func (r *run) pause() {
	tick := time.NewTimer(10 * time.Millisecond)
	defer tick.Stop()
	select {
	case <-tick.C:
	case <-r.t.Context().Done():
	}
}

// once sends the request and returns what is wrong with its answer.
func (q *Request) once(r *run) (faults []string) {
	ctx, cancel := context.WithTimeout(r.t.Context(), stepMax)
	defer cancel()
	sent := r.name(q.body)
	req, err := q.build(ctx, r, sent)
	if err != nil {
		return []string{err.Error()}
	}
	res, err := r.client.Do(req)
	if err != nil {
		return []string{"no answer: " + err.Error()}
	}
	body, err := io.ReadAll(res.Body)
	if closeErr := res.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return []string{fmt.Sprintf("status %d, and its body broke off: %v", res.StatusCode, err)}
	}
	if r.target.Observe != nil {
		r.target.Observe(req, []byte(sent), res, body)
	}
	r.note(req, res)
	faults = q.want.check(q.method, res, body, r.name)
	for _, s := range q.want.save {
		value, ok := saved(res, body, s[1])
		if !ok {
			faults = append(faults, s[1]+" is not there")
		}
		r.keep(s[0], value)
	}
	if len(faults) > 0 {
		faults = append(faults, fmt.Sprintf("sent: %v %.200q", q.header, sent), fmt.Sprintf("answer: %s %v %.400s", res.Status, res.Header, strings.ToValidUTF8(string(body), "?")))
	}
	return faults
}

func (q *Request) build(ctx context.Context, r *run, sent string) (*http.Request, error) {
	var body io.Reader
	if q.body != "" || q.chunked {
		body = strings.NewReader(sent)
		if q.chunked {
			body = io.MultiReader(body) // a reader without a length
		}
	}
	req, err := http.NewRequestWithContext(ctx, q.method, r.target.base(), body)
	if err != nil {
		return nil, err
	}
	// As it stands: net/url would write some escapes anew. (A path that begins
	// with two slashes is for a Talk: here it would become a host.)
	path, query, _ := strings.Cut(r.name(q.path), "?")
	req.URL = &url.URL{Scheme: req.URL.Scheme, Host: req.URL.Host, Opaque: path, RawQuery: query}
	for _, line := range q.header {
		key, value, _ := strings.Cut(r.name(line), ":")
		req.Header.Add(key, strings.TrimSpace(value))
	}
	if r.target.User != "" && !q.anonymous {
		req.SetBasicAuth(r.target.User, r.target.Password)
	}
	return req, nil
}

// note remembers topics that were made.
func (r *run) note(req *http.Request, res *http.Response) {
	if at := res.Header.Get("Location"); at != "" && req.Method == http.MethodPost && res.StatusCode == http.StatusCreated {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.made = append(r.made, at)
	}
}
