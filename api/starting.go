package api

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Starting answers in a server's place while its node starts, which takes as
// long as the replay of its log: the process is alive, the node is not ready and
// says what it does, and everything else is to be asked again. progress returns
// what the node does now; it does not block.
func Starting(progress func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = typeJSON
		reason := "starting: " + progress()
		asks := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch path := routePath(r); {
		case asks && path == "/healthz":
			_, _ = w.Write(healthy) // a client that left does not need it
		case asks && path == "/readyz":
			var ready broker.Readiness
			ready.Degrade(broker.CauseStarting, broker.BlocksData, reason)
			body, _ := json.Marshal(ready) // booleans and text always have a form
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write(append(body, '\n'))
		default:
			f := failureOf(errcode.New(errcode.Unavailable, "the node is %s; try again", reason))
			w.Header().Set("Retry-After", strconv.FormatInt(f.retryAfter(), 10))
			w.WriteHeader(statusOf(f.code))
			_, _ = w.Write(append(f.appendJSON(nil), '\n'))
		}
	})
}
