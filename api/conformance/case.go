package conformance

import (
	"strings"
)

// Case is one rule of the API with the exchanges that show it.
type Case struct {
	Rule    string   // in words
	Reports []string // ids of field reports that it stands for
	Differs string   // id in docs/compatibility.md, "" = none
	Topic   string   // JSON members of its topic beside the name; "" = 3 partitions
	Alone   bool     // it exhausts a bound of the whole node
	Secured bool     // it is about credentials, so the node must ask for them
	Archive bool     // it needs an archive
	Steps   []Step   // one after the other
}

// Step is a part of a case: a [Request], a [Talk] or several at a time
// ([Beside]).
type Step interface {
	do(r *run)
}

// Texts of requests and expectations name what is known only when the case
// runs: {t} is the case's topic, {host} the node's address, {auth} the header
// line with the credentials (for a Talk), and what an answer was Saved as.

// Request is one request through net/http and what its answer must be.
type Request struct {
	method, path string
	header       []string // "Name: value"
	body         string
	chunked      bool // sent without a length
	anonymous    bool // sent without credentials
	want         expectation
	eventually   bool // repeated until the answer is the expected one
}

// client is the header that programs send.
const client = "X-Tidemark-Client: conformance"

// send is a request with these headers alone.
func send(method, path, body string, header ...string) Request {
	return Request{method: method, path: path, body: body, header: header}
}

// get is a GET of a program.
func get(path string, header ...string) Request {
	return send("GET", path, "", append([]string{client}, header...)...)
}

// post is a POST of a program.
func post(path, body string, header ...string) Request {
	return send("POST", path, body, append([]string{client}, header...)...)
}

// postJSON is a POST of a JSON document.
func postJSON(path, body string) Request {
	return send("POST", path, body, "Content-Type: application/json")
}

// produce stores one record in partition 0 and must succeed.
func produce(body string, header ...string) Request {
	return post("/v1/topics/{t}/produce?partition=0&ack=committed", body, header...).is(200)
}

// inChunks sends the body without saying its length before.
func (q Request) inChunks() Request { q.chunked = true; return q }

// without sends the request without credentials.
func (q Request) withoutCredentials() Request { q.anonymous = true; return q }

// becomes repeats the request until its answer is the expected one.
func (q Request) becomes(status int) Request { q.eventually = true; return q.is(status) }

// is expects a success.
func (q Request) is(status int) Request { q.want.status = status; return q }

// fails expects an error with a code.
func (q Request) fails(status int, code string) Request {
	q.want.status, q.want.code = status, code
	return q
}

// exactly expects a body.
func (q Request) exactly(body string) Request { q.want.exact = &body; return q }

// says expects texts in the body.
func (q Request) says(texts ...string) Request { q.want.says = with(q.want.says, texts...); return q }

// hides expects texts not to be in the body.
func (q Request) hides(texts ...string) Request {
	q.want.hides = with(q.want.hides, texts...)
	return q
}

// field expects a member of the JSON body, named like "messages.0.offset", to
// have a value, as JSON text without white space; "absent" expects none.
func (q Request) field(path, value string) Request {
	q.want.fields = append(q.want.fields[:len(q.want.fields):len(q.want.fields)], [2]string{path, value})
	return q
}

// head expects a header of the answer, "Name: value"; "Name:" expects none.
func (q Request) head(lines ...string) Request { q.want.head = with(q.want.head, lines...); return q }

// save keeps a member of the JSON body, or with "header Name" a header, for
// later texts.
func (q Request) save(name, path string) Request {
	q.want.save = append(q.want.save[:len(q.want.save):len(q.want.save)], [2]string{name, path})
	return q
}

// with never writes into the list that another request shares.
func with(list []string, more ...string) []string { return append(list[:len(list):len(list)], more...) }

// Beside runs its steps at the same time.
type Beside []Step

// steps is a list of them.
func steps(s ...Step) []Step { return s }

// each makes a step of every text.
func each(texts []string, step func(text string) Step) (list []Step) {
	for _, text := range texts {
		list = append(list, step(text))
	}
	return list
}

// join is several lists of steps.
func join(lists ...[]Step) (all []Step) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// fill is a text of n bytes.
func fill(n int64) string { return strings.Repeat("x", int(n)) }
