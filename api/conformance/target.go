package conformance

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/tidemark-mq/tidemark/api"
)

// Target is a node under test.
type Target struct {
	URL            string     // http://host:port
	User, Password string     // "" = the node asks for no credentials
	Limits         api.Limits // its bounds; the zero value stands for the defaults
	Archived       bool       // it has an archive

	// Observe, when it is not nil, sees every exchange that went through
	// net/http, with the bodies read. It is called from several goroutines.
	Observe func(req *http.Request, sent []byte, res *http.Response, got []byte)
}

// host is what a connection of one's own dials.
func (t *Target) host() string {
	u, err := url.Parse(t.URL)
	if err != nil {
		return t.URL // dialling it fails with a message of its own
	}
	return u.Host
}

// base is the URL without a slash at its end.
func (t *Target) base() string { return strings.TrimSuffix(t.URL, "/") }

func (t *Target) limits() api.Limits {
	if t.Limits == (api.Limits{}) {
		return api.DefaultLimits()
	}
	return t.Limits
}
