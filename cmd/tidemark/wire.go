package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxRecordAnswer bounds an answer that is read whole: 100 records of up to
// 4 MiB together, or one of 16 MiB, as JSON.
const maxRecordAnswer = 128 << 20

// wire asks a node for records as the node writes them. Package client decodes
// them, after which a text and the JSON string of it are the same; a command
// that prints records must not mix them up.
type wire struct {
	base     string
	user     string
	password string
	http     *http.Client
}

// send returns an answer that succeeded; the caller closes its body.
func (w *wire) send(ctx context.Context, method, path string, query url.Values, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, usagef("--server: %w", err)
	}
	req.Header.Set("X-Tidemark-Client", "tidemark-cli/"+version)
	req.Header.Set("Accept", accept)
	if w.password != "" || w.user != "" {
		req.SetBasicAuth(w.user, w.password)
	}
	res, err := w.http.Do(req)
	if err != nil {
		return nil, explain(err, w.base)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }() // its text is what counts
	body, _ := readAtMost(res.Body, "the answer", 64<<10)
	var said struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &said) != nil || said.Error == "" {
		said.Error = res.Status + ", and no JSON error"
	}
	code := errcode.Internal
	if res.StatusCode == http.StatusUnauthorized {
		code = errcode.Unauthorized
	}
	return nil, explain(errcode.New(code, "%s", said.Error), w.base)
}

// read returns the whole JSON of an answer, errNothing if it has none.
func (w *wire) read(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	res, err := w.send(ctx, method, path, query, "application/json")
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	if res.StatusCode == http.StatusNoContent {
		return nil, errNothing
	}
	return readAtMost(res.Body, "the answer", maxRecordAnswer)
}

// errNothing: there was no record in time.
var errNothing = errors.New("nothing there")

func topicPath(topic, rest string) string { return "/v1/topics/" + url.PathEscape(topic) + rest }

// jsonLine writes JSON on one line: line breaks can only stand between its
// tokens.
func jsonLine(b []byte) []byte {
	for i, c := range b {
		if c == '\n' || c == '\r' {
			b[i] = ' '
		}
	}
	return append(b, '\n')
}

// output is stdout for records. Each write is whole records, so that what it
// took can be acked.
type output struct {
	w         io.Writer
	raw       bool
	delimiter string
}

func (o *output) value(v []byte) error {
	_, err := o.w.Write(append(v, o.delimiter...))
	return o.explain(err)
}

func (o *output) line(b []byte) error {
	_, err := o.w.Write(jsonLine(b))
	return o.explain(err)
}

func (o *output) explain(err error) error {
	if err == nil {
		return nil
	}
	return errcode.New(errcode.Storage, "stdout does not take more: %w", err)
}

// jsonLines gives --json to a command that prints a line of JSON a record unless
// --raw is said, so that a script can say what it counts on.
func jsonLines(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "print one JSON object a line (the default)")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("json") && cmd.Flags().Changed("raw") {
			return usagef("--json and --raw are different forms: give one")
		}
		return nil
	}
}

// unescape reads \n, \t, \0 and \\ in a delimiter.
func unescape(text string) string {
	return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\t`, "\t", `\0`, "\x00").Replace(text)
}
