package api

import (
	"net/http"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// trim raises the start of a partition's log.
func (s *Server) trim(x *exchange) error {
	body, err := x.readBody(s.limits.SmallBody, "the body")
	if err != nil {
		return err
	}
	before, err := decodeTrim(body)
	if err != nil {
		return err
	}
	if err := x.needTopic(); err != nil {
		return err
	}
	partition, err := x.pathPartition()
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	oldest, err := s.broker.Trim(ctx, x.topic, partition, before)
	if err != nil {
		return err
	}
	out := x.buffer()
	out.b = append(out.b, `{"oldest_offset":`...)
	out.b = strconv.AppendInt(out.b, oldest, 10)
	out.b = append(out.b, "}\n"...)
	x.reply(http.StatusOK, typeJSON, out.b)
	return nil
}

// decodeTrim reads {"before":N} strictly: a bound that was misread would remove
// records that nobody meant.
func decodeTrim(body []byte) (before int64, err error) {
	it, err := oneObject(body)
	if err != nil {
		return 0, err
	}
	given := false
	for it.next() {
		switch {
		case !isName(it.name, "before"):
			return 0, unknownField(it.name, "before")
		case given:
			return 0, errcode.New(errcode.InvalidArgument, `the field "before" is given twice`)
		}
		given = true
		if before, err = strconv.ParseInt(string(it.value), 10, 64); err != nil {
			return 0, errcode.New(errcode.InvalidArgument, `the field "before" is %.40s, and not a whole number: the first offset to keep`, it.value)
		}
	}
	if err := endOfObject(body, it.at); err != nil {
		return 0, err
	}
	if !given {
		return 0, errcode.New(errcode.InvalidArgument, `the field "before" is missing: the first offset to keep`)
	}
	return before, nil
}
