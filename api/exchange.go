package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/julienschmidt/httprouter"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Header values that are shared by all answers: setting them costs nothing.
var (
	typeJSON   = []string{mediaJSON}
	typeNDJSON = []string{mediaNDJSON}
	typeBytes  = []string{mediaBytes}
	noSniff    = []string{"nosniff"}
	connClose  = []string{"close"}
)

// exchange is one request and its answer. It is pooled: nothing of it may be
// kept after the handler returns. It is the ResponseWriter that handlers see,
// so that status and bytes are counted in one place.
type exchange struct {
	s           *Server
	w           http.ResponseWriter
	r           *http.Request
	conn        *conn           // nil where Serve does not run
	direct      bool            // the connection knows more of the answer than net/http
	here        context.Context // see client
	unwatch     func()          // nil: nobody watches
	route       *route
	params      httprouter.Params
	query       query
	identity    string
	topic       string
	info        TopicInfo // of topic, after needTopic
	status      int
	in, out     int64
	wroteHeader bool
	bodyDone    bool   // read to its end
	bodyBroken  bool   // it stopped arriving, or is no body
	charged     int64  // taken from the budget of large bodies
	beside      int64  // of an encoded body that stays while it is decoded
	own         buffer // the first buffer, which stays with the exchange
	ownUsed     bool
	held        []*buffer // further ones, which go back to their pool
	records     []NewRecord
	headers     []broker.Header
}

func (x *exchange) Header() http.Header         { return x.w.Header() }
func (x *exchange) Unwrap() http.ResponseWriter { return x.w }

func (x *exchange) WriteHeader(status int) {
	if x.wroteHeader {
		return
	}
	x.wroteHeader, x.status = true, status
	x.w.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	if !x.wroteHeader {
		x.WriteHeader(http.StatusOK)
	}
	n, err := x.w.Write(b)
	x.out += int64(n)
	return n, err
}

// flush hands everything written so far to the connection.
func (x *exchange) flush() error { return http.NewResponseController(x.w).Flush() }

// buffer returns an empty pooled buffer that lives until the answer is done.
func (x *exchange) buffer() *buffer {
	if !x.ownUsed {
		x.ownUsed = true
		if x.own.b == nil {
			x.own.b = make([]byte, 0, smallBuffer)
		}
		return &x.own
	}
	b := smallBuffers.Get().(*buffer)
	b.b = b.b[:0]
	x.held = append(x.held, b)
	return b
}

func (x *exchange) template() string {
	if x.route == nil {
		return otherRoute
	}
	return x.route.template
}

func (x *exchange) reset(s *Server, w http.ResponseWriter, r *http.Request) {
	x.s, x.w, x.r, x.conn = s, w, r, connOf(r)
	if x.conn != nil {
		// The last answer may have left before its handler ended.
		x.conn.now, x.conn.large = time.Time{}, false
		x.conn.next.forget()
		x.direct = r.Method != http.MethodHead // whose length net/http has to know
	}
}

// release returns what the exchange holds and forgets the request.
func (x *exchange) release() {
	if x.charged > 0 {
		x.s.largeBodies.Add(-x.charged)
	}
	for i, b := range x.held {
		b.release()
		x.held[i] = nil
	}
	// Both only ever grew since they were cleared last, so nothing stands
	// beyond their lengths.
	clear(x.records)
	clear(x.headers)
	first := x.own.b[:0]
	if cap(first) > smallBufferTo { // it grew: large ones have a pool
		(&buffer{first}).release()
		first = nil
	}
	*x = exchange{own: buffer{first}, held: x.held[:0], records: x.records[:0], headers: x.headers[:0]}
}

// needTopic looks the topic of the path up.
func (x *exchange) needTopic() error {
	info, err := x.s.broker.TopicFor(x.topic)
	if err != nil {
		return err
	}
	x.info = info
	return nil
}

// partition returns the query's partition, or -1 when it names none. needTopic
// comes first.
func (x *exchange) partition() (int32, error) {
	text, ok := x.query.get("partition")
	if !ok {
		return -1, nil
	}
	p, err := parsePartition(text, x.info.Partitions)
	if err != nil {
		return 0, errcode.New(errcode.InvalidArgument, "parameter partition: %v", err)
	}
	return p, nil
}

// pathPartition returns the partition of the path. needTopic comes first.
func (x *exchange) pathPartition() (uint32, error) {
	text, err := unescapeSegment(x.params.ByName("partition"))
	if err != nil {
		return 0, err
	}
	n, err := parseWhole(text)
	if err != nil {
		return 0, errcode.New(errcode.InvalidArgument, "partition %.40q of the path is not a whole number from 0 on", text)
	}
	if n >= int64(x.info.Partitions) {
		return 0, errcode.New(errcode.NotFound, "topic %q has no partition %d; its partitions are 0 to %d", x.topic, n, x.info.Partitions-1)
	}
	return uint32(n), nil
}

// buffer is a pooled byte slice.
type buffer struct{ b []byte }

// Buffers are pooled in two sizes, so that a small request never pins a large
// one. What grew beyond the largest pooled size is left to the collector.
const (
	smallBuffer   = 4 << 10
	smallBufferTo = 64 << 10
	largeBufferTo = 4<<20 + 1
)

var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, smallBuffer)} }}
	largeBuffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 4*smallBufferTo)} }}
)

func (b *buffer) release() {
	switch c := cap(b.b); {
	case c <= smallBufferTo:
		smallBuffers.Put(b)
	case c <= largeBufferTo:
		largeBuffers.Put(b)
	}
}

// deadlineIn returns a socket deadline: those are wall-clock times.
func deadlineIn(d time.Duration) time.Time { return time.Now().Add(d) }
