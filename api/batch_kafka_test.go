package api

import (
	"strings"
	"testing"
)

// kafka posts a body as a Kafka batch.
func (s *site) kafka(query, body string, more ...string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/topics/orders/produce/batch?"+query, body, append([]string{"Content-Type: " + mediaBatch}, more...)...)
}

// A Kafka batch reaches the broker byte for byte, plain or in an encoding, with the
// bounds of the plane and of the topic, and is answered like other batches; it goes
// into one partition, which has to be named.
func TestKafkaBatchIsHandedOn(t *testing.T) {
	s := start(t, limits(func(l *Limits) { l.BatchRecords, l.BatchBytes = 77, 2000 }))
	s.want(s.patch(`{"max_record_bytes":55}`), 200, "")
	body := strings.Repeat("\x00", 57) + "\x00\x00\x00\x03" + "three records"
	if a := s.want(s.kafka("partition=2", body), 202, ""); a.body != "{\"accepted\":3}\n" {
		t.Error(a.body)
	}
	if a := s.want(s.kafka("partition=2&ack=committed", gzipped(body), "Content-Encoding: gzip"), 200, ""); a.body != `{"partitions":[{"partition":2,"first_offset":3,"last_offset":5,"count":3}]}`+"\n" {
		t.Error(a.body)
	}
	for _, got := range s.f.encoded {
		b := got.Bounds
		if string(got.Data) != body || got.Partition != 2 || b.Records != 77 || b.Value != 55 || b.Decoded != 2000 || b.Key != 64<<10 || b.Headers != 128 || b.HeaderBytes != 64<<10 {
			t.Errorf("%q %+v", got.Data, b)
		}
	}
	before := s.f.produces
	if a := s.want(s.kafka("", body), 400, "invalid_argument"); !strings.Contains(a.body, "parameter partition is missing") {
		t.Error(a.body)
	}
	s.want(s.kafka("partition=3", body), 400, "invalid_argument")
	s.want(s.kafka("partition=0&key=k", body), 400, "invalid_argument")
	s.want(s.kafka("partition=0&key_field=/k", body), 400, "invalid_argument")
	s.want(s.kafka("partition=0", strings.Repeat("x", 2001)), 413, "too_large")
	s.want(s.kafka("partition=0", gzipped(strings.Repeat("x", 2001)), "Content-Encoding: gzip"), 413, "too_large")
	s.want(s.do("POST", "/v1/topics/none/produce/batch?partition=0", body, "Content-Type: "+mediaBatch), 404, "not_found")
	if len(s.f.encoded) != 2 || s.f.produces != before {
		t.Errorf("%d batches reached the broker", len(s.f.encoded))
	}
}
