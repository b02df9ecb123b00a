package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/julienschmidt/httprouter"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// otherRoute is the template of requests that no route answers.
const otherRoute = "other"

// route is one method of one path template.
type route struct {
	method   string
	template string
	open     bool     // answers without credentials
	head     bool     // GET has no effect, so HEAD is served as well
	params   []string // of the query
	later    []string // parameters that a later build knows
	serve    func(*exchange) error
	metrics  *routeMetrics
}

func (s *Server) routes() []route {
	return []route{
		{method: http.MethodPost, template: "/v1/topics", serve: s.createTopic},
		{method: http.MethodGet, template: "/v1/topics", head: true, params: []string{"limit", "page_token"}, serve: s.listTopics},
		{method: http.MethodGet, template: "/v1/topics/:topic", head: true, params: []string{"partition"}, serve: s.describeTopic},
		{method: http.MethodPatch, template: "/v1/topics/:topic", serve: s.setTopic},
		{method: http.MethodDelete, template: "/v1/topics/:topic", params: []string{"force"}, serve: s.deleteTopic},
		{
			method: http.MethodPost, template: "/v1/topics/:topic/produce", serve: s.produce,
			params: []string{"key", "partition", "ack", "wait", "expected_offset"}, later: []string{"delay", "deliver_at"},
		},
		{
			method: http.MethodPost, template: "/v1/topics/:topic/produce/batch", serve: s.produceBatch,
			params: []string{"partition", "ack", "wait", "expected_offset", "key_field", "value_field"}, later: []string{"delay", "deliver_at"},
		},
		{
			method: http.MethodGet, template: "/v1/topics/:topic/consume", serve: s.consume,
			params: []string{"wait", "partition", "max", "group", "offset"}, later: []string{"start"},
		},
		{
			method: http.MethodPost, template: "/v1/topics/:topic/consume", serve: s.consume,
			params: []string{"wait", "partition", "max", "group"}, later: []string{"start"},
		},
		{
			method: http.MethodPost, template: "/v1/topics/:topic/ack", serve: s.settle,
			params: []string{"receipt_handle", "group", "action", "for", "delay", "extend"},
		},
		{
			method: http.MethodGet, template: "/v1/topics/:topic/partitions/:partition/records", head: true, serve: s.readRecords,
			params: []string{"from", "to", "at", "max", "max_bytes", "wait", "follow"},
		},
		{
			method: http.MethodGet, template: "/v1/topics/:topic/partitions/:partition/offset", head: true, serve: s.findOffset,
			params: []string{"at"},
		},
		{method: http.MethodGet, template: "/v1/archive", head: true, params: []string{"topic", "limit", "page_token"}, serve: s.archiveStatus},
		{method: http.MethodGet, template: "/v1/archive/garbage", head: true, serve: s.garbage},
		{method: http.MethodPost, template: "/v1/archive/garbage", serve: s.collectGarbage},
		{method: http.MethodPost, template: "/v1/topics/:topic/partitions/:partition/trim", serve: s.trim},
		{method: http.MethodGet, template: "/v1/archive/scrub", head: true, serve: s.scrub},
		{method: http.MethodPost, template: "/v1/archive/scrub", params: []string{"topic"}, serve: s.startScrub},
		{method: http.MethodGet, template: "/healthz", head: true, open: true, serve: s.health},
		{method: http.MethodGet, template: "/readyz", head: true, open: true, serve: s.ready},
		{method: http.MethodGet, template: "/metrics", head: true, serve: s.serveMetrics},
	}
}

// routedMethods are the methods that any route has, in the order of Allow.
var routedMethods = []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodPost}

// buildRouter registers the routes. The router only ever looks a method and a
// path up: redirects, its own answers and its idea of the path stay unused.
func (s *Server) buildRouter() {
	s.router = httprouter.New()
	for _, rt := range s.routes() {
		s.register(rt)
		if rt.head {
			rt.method = http.MethodHead
			s.register(rt)
		}
	}
}

func (s *Server) register(rt route) {
	rt.metrics = s.metrics.route(rt.method, rt.template)
	s.router.Handle(rt.method, rt.template, func(w http.ResponseWriter, _ *http.Request, ps httprouter.Params) {
		x := w.(*exchange)
		x.route, x.params = &rt, ps
	})
}

// routePath is what routing works on: the path as it was escaped, so that an
// encoded slash stays inside its segment, without one trailing slash.
func routePath(r *http.Request) string {
	path := r.URL.EscapedPath()
	if n := len(path); n > 1 && path[n-1] == '/' {
		path = path[:n-1]
	}
	return path
}

// dispatch routes, checks who asks and how, and calls the handler. The order
// matters: credentials are checked before anything that costs, and nothing of
// a body is read before the guard agrees.
func (s *Server) dispatch(x *exchange) error {
	path := routePath(x.r)
	if handle, ps, _ := s.router.Lookup(x.r.Method, path); handle != nil {
		handle(x, x.r, ps)
	}
	if x.route == nil || !x.route.open {
		if err := s.authenticate(x); err != nil {
			return err
		}
	}
	if x.route == nil {
		return s.unrouted(x, path)
	}
	if err := guard(x.r); err != nil {
		return err
	}
	if err := x.query.parse(x.r.URL.RawQuery, x.route.params, x.route.later); err != nil {
		return err
	}
	if len(x.params) > 0 {
		name, err := unescapeSegment(x.params[0].Value)
		if err != nil {
			return err
		}
		if err := broker.ValidateName("topic", name); err != nil {
			return err
		}
		x.topic = name
	}
	if x.r.Method != http.MethodPost && x.r.Method != http.MethodPatch {
		// Read now: a body that nobody reads would be waited for without a
		// deadline when the answer is written, and the connection is only
		// watched for its end once the body is done.
		if err := x.noBody(); err != nil {
			return err
		}
	}
	return x.route.serve(x)
}

// unrouted answers OPTIONS, the wrong method on a path that exists, and paths
// that do not.
func (s *Server) unrouted(x *exchange, path string) error {
	allow := s.allowed(path)
	if allow == "" {
		if what := laterPath(path); what != "" {
			return errcode.New(errcode.NotFound, "%s are not in this build (%s %.100q)", what, x.r.Method, path)
		}
		return errcode.New(errcode.NotFound, "there is no route %.20q %.100q: %s", x.r.Method, path, s.hint(path))
	}
	x.Header()["Allow"] = []string{allow}
	if x.r.Method == http.MethodOptions {
		// No Access-Control header: pages of other origins are not approved.
		x.giveUpBody()
		x.WriteHeader(http.StatusNoContent)
		return nil
	}
	return errcode.New(errcode.MethodNotAllowed, "%.20q is not a method of %.100q, which allows %s", x.r.Method, path, allow)
}

// allowed lists the methods of a path, "" when it has none.
func (s *Server) allowed(path string) string {
	var list []string
	for _, method := range routedMethods {
		if handle, _, _ := s.router.Lookup(method, path); handle != nil || path == "*" {
			list = append(list, method)
		}
	}
	if list == nil {
		return ""
	}
	return strings.Join(append(list, http.MethodOptions), ", ")
}

// hint says where to go instead of a path that has no route: there under /v1 when
// that is all it lacks, else what paths there are.
func (s *Server) hint(path string) string {
	if s.allowed("/v1"+path) != "" {
		return fmt.Sprintf("use /v1%.100s", path)
	}
	return "routes are below /v1/topics and /v1/archive, for example POST /v1/topics/TOPIC/produce and GET /v1/topics/TOPIC/consume; beside them are /healthz, /readyz and /metrics"
}

// laterPath names what a later build answers at path.
func laterPath(path string) string {
	part := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if len(part) < 2 || part[0] != "v1" {
		return ""
	}
	switch part[1] {
	case "users":
		return "users and grants"
	case "cluster":
		return "cluster routes"
	case "archive":
		if len(part) > 2 && part[2] == "snapshots" {
			return "snapshots of the archive"
		}
	}
	if part[1] != "topics" || len(part) < 4 {
		return ""
	}
	switch part[3] {
	case "groups":
		return "named groups"
	case "children":
		return "children"
	case "schema":
		return "schemas"
	}
	return ""
}
