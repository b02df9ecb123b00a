package s3

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fake is a store that says what a test tells it to: the spellings and lies that
// a well-behaved server never gives.
type fake struct {
	*httptest.Server
	t  *testing.T
	mu struct {
		sync.Mutex
		log    []string // "METHOD path?query" of each request
		answer func(w http.ResponseWriter, r *http.Request, body []byte)
	}
}

func newFake(t *testing.T, answer func(http.ResponseWriter, *http.Request, []byte)) *fake {
	t.Helper()
	f := &fake{t: t}
	f.mu.answer = answer
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	line := r.Method + " " + r.URL.Path
	if r.URL.RawQuery != "" {
		line += "?" + r.URL.RawQuery
	}
	f.mu.log = append(f.mu.log, line)
	if err != nil {
		return // the client gave up in the middle
	}
	f.mu.answer(w, r, body)
}

// requests returns what was asked so far.
func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mu.log)
}

func (f *fake) options() Options { return optionsFor(f.URL) }

func optionsFor(endpoint string) Options {
	return Options{Bucket: "bucket", Prefix: "root", Endpoint: endpoint, Region: "us-east-1", AccessKeyID: "id", SecretAccessKey: "secret"}
}

// answerError writes an error document; no code makes an empty body.
func answerError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if code != "" {
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
	}
}

// always answers every request with the same error.
func always(status int, code string) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) { answerError(w, status, code, "as told") }
}

// parts is a fake that keeps one bucket in memory with what multipart uploads
// need. Its fields are what a test may turn on.
type parts struct {
	objects map[string][]byte
	uploads map[string]map[string][]byte // by id, by part number
	nextID  int

	noChecksums bool                                              // refuse every x-amz-checksum header and trailer
	trip        func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	flip        bool                                              // turn one bit of every object read
	cut         bool                                              // send 60 % of what was announced
}

func newParts() *parts {
	return &parts{objects: map[string][]byte{}, uploads: map[string]map[string][]byte{}}
}

func (p *parts) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	if p.noChecksums && refusesChecksums(w, r) {
		return
	}
	if p.trip != nil && p.trip(w, r) {
		return
	}
	q, key := r.URL.Query(), strings.TrimPrefix(r.URL.Path, "/bucket/")
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		p.nextID++
		id := fmt.Sprintf("id%d", p.nextID)
		p.uploads[id] = map[string][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case r.Method == http.MethodGet && q.Has("uploads"):
		p.listUploads(w)
	case q.Has("uploadId"):
		p.upload(w, r, key, q.Get("uploadId"), q.Get("partNumber"), body)
	case r.Method == http.MethodPost && q.Has("delete"):
		for k := range p.objects {
			if bytes.Contains(body, []byte("<Key>"+k+"</Key>")) {
				delete(p.objects, k)
			}
		}
		fmt.Fprint(w, "<DeleteResult></DeleteResult>")
	case r.Method == http.MethodPut:
		if _, taken := p.objects[key]; taken && r.Header.Get("If-None-Match") == "*" {
			answerError(w, 412, "PreconditionFailed", "taken")
			return
		}
		p.objects[key] = body
	case r.Method == http.MethodGet:
		p.get(w, key)
	default:
		answerError(w, 501, "NotImplemented", r.Method)
	}
}

func refusesChecksums(w http.ResponseWriter, r *http.Request) bool {
	for h := range r.Header {
		l := strings.ToLower(h)
		if strings.HasPrefix(l, "x-amz-checksum-") || l == "x-amz-trailer" || l == "x-amz-sdk-checksum-algorithm" {
			answerError(w, 400, "InvalidRequest", "unsupported header "+h)
			return true
		}
	}
	if strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") || strings.Contains(r.Header.Get("X-Amz-Content-Sha256"), "TRAILER") {
		answerError(w, 400, "InvalidRequest", "trailers are not supported")
		return true
	}
	return false
}

func (p *parts) upload(w http.ResponseWriter, r *http.Request, key, id, number string, body []byte) {
	parts, ok := p.uploads[id]
	if !ok {
		answerError(w, 404, "NoSuchUpload", id)
		return
	}
	switch r.Method {
	case http.MethodPut:
		parts[fmt.Sprintf("%5s", number)] = body
		w.Header().Set("ETag", `"`+number+`"`)
	case http.MethodDelete:
		delete(p.uploads, id)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPost:
		if _, taken := p.objects[key]; taken && r.Header.Get("If-None-Match") == "*" {
			answerError(w, 412, "PreconditionFailed", "taken")
			return
		}
		var whole []byte
		for n := 1; n <= len(parts); n++ {
			whole = append(whole, parts[fmt.Sprintf("%5d", n)]...)
		}
		p.objects[key] = whole
		delete(p.uploads, id)
		fmt.Fprint(w, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
	}
}

func (p *parts) listUploads(w http.ResponseWriter) {
	fmt.Fprint(w, "<ListMultipartUploadsResult>")
	for id := range p.uploads {
		fmt.Fprintf(w, "<Upload><Key>root/big</Key><UploadId>%s</UploadId><Initiated>2020-01-02T03:04:05Z</Initiated></Upload>", id)
	}
	fmt.Fprint(w, "</ListMultipartUploadsResult>")
}

func (p *parts) get(w http.ResponseWriter, key string) {
	data, ok := p.objects[key]
	if !ok {
		answerError(w, 404, "NoSuchKey", key)
		return
	}
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	w.Header().Set("x-amz-checksum-crc32c", base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)))
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	data = slices.Clone(data)
	if p.flip {
		data[len(data)/2] ^= 1
	}
	if p.cut {
		data = data[:len(data)*6/10]
	}
	_, _ = w.Write(data)
}

func crcOf(data []byte) *uint32 {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return &sum
}
