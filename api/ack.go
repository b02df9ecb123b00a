package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// settle acks, extends or nacks leases: one by the query, or a list by the
// body.
func (s *Server) settle(x *exchange) error {
	req, err := x.settleRequest()
	if err != nil {
		return err
	}
	body, err := x.readBody(s.limits.SmallBody, "the body")
	if err != nil {
		return err
	}
	listed, err := s.handles(body)
	if err != nil {
		return err
	}
	handle, single := x.query.get("receipt_handle")
	switch {
	case single && listed != nil:
		return errcode.New(errcode.InvalidArgument, "receipt_handle in the query and receipt_handles in the body do not go together")
	case single && handle == "":
		return errcode.New(errcode.InvalidArgument, "parameter receipt_handle is empty")
	case single:
		req.Handles = []string{handle}
	case len(listed) == 0:
		return errcode.New(errcode.InvalidArgument, `nothing to settle: name a receipt_handle in the query, or send {"receipt_handles":[...]}`)
	default:
		req.Handles = listed
	}
	results, err := s.broker.Settle(s.base, req)
	if err != nil {
		return err
	}
	if len(results) != len(req.Handles) {
		return errcode.New(errcode.Internal, "settling %d handles of topic %q gave %d results", len(req.Handles), x.topic, len(results))
	}
	if single {
		if results[0] != nil {
			return results[0]
		}
		x.WriteHeader(http.StatusNoContent)
		return nil
	}
	x.settled(results)
	return nil
}

// settleRequest reads the query.
func (x *exchange) settleRequest() (SettleRequest, error) {
	req := SettleRequest{Topic: x.topic, Group: broker.DefaultGroup}
	if err := x.query.group(); err != nil {
		return req, err
	}
	var err error
	if req.Action, err = x.settleAction(); err != nil {
		return req, err
	}
	if req.For, err = x.leaseTime("for", req.Action == SettleExtend); err != nil {
		return req, err
	}
	if req.Delay, err = x.leaseTime("delay", req.Action == SettleNack); err != nil {
		return req, err
	}
	return req, x.needTopic()
}

// settleAction reads action, and extend, the older form of two of its values.
func (x *exchange) settleAction() (SettleAction, error) {
	action, named := x.query.get("action")
	extend, old := x.query.get("extend")
	switch {
	case named && old:
		return "", errcode.New(errcode.InvalidArgument, "the parameters action and extend do not go together")
	case old && (extend == "true" || extend == "1"):
		return SettleExtend, nil
	case old && extend == "0":
		return SettleNack, nil
	case old:
		return "", errcode.New(errcode.InvalidArgument, "parameter extend is %.40q; it is true or 1 (extend) or 0 (nack)", extend)
	case !named:
		return SettleAck, nil
	}
	switch a := SettleAction(action); a {
	case SettleAck, SettleNack, SettleExtend:
		return a, nil
	}
	if action == "dead_letter" {
		return "", laterf(errcode.InvalidArgument, "action", action)
	}
	return "", errcode.New(errcode.InvalidArgument, "parameter action is %.40q; it is ack, nack or extend", action)
}

// leaseTime reads a length of time that belongs to one action only.
func (x *exchange) leaseTime(name string, belongs bool) (time.Duration, error) {
	d, err := x.query.duration(name, 0)
	if err != nil {
		return 0, err
	}
	_, named := x.query.get(name)
	switch {
	case !named:
		return 0, nil
	case !belongs:
		return 0, errcode.New(errcode.InvalidArgument, "parameter %s does not go with this action: for belongs to extend, delay to nack", name)
	case d > x.s.limits.LeaseTime:
		return 0, errcode.New(errcode.InvalidArgument, "parameter %s is %v; the longest is %v", name, d, x.s.limits.LeaseTime)
	case d == 0 && name == "for":
		return 0, errcode.New(errcode.InvalidArgument, "parameter for is zero; to give a record back, nack it")
	}
	return d, nil
}

// handles decodes {"receipt_handles":[...]}; an empty body has none.
func (s *Server) handles(body []byte) ([]string, error) {
	if skipSpace(body, 0) == len(body) {
		return nil, nil
	}
	top, err := oneObject(body)
	if err != nil {
		return nil, err
	}
	var list []string
	for top.next() {
		switch {
		case !isName(top.name, "receipt_handles"):
			return nil, unknownField(top.name, "receipt_handles")
		case list != nil:
			return nil, errcode.New(errcode.InvalidArgument, `the field "receipt_handles" is given twice`)
		case top.value[0] != '[':
			return nil, errcode.New(errcode.InvalidArgument, `the field "receipt_handles" is not a list`)
		}
		if list, err = s.handleList(top.value); err != nil {
			return nil, err
		}
	}
	return list, endOfObject(body, top.at)
}

func (s *Server) handleList(raw []byte) ([]string, error) {
	list := []string{}
	it := arrayIter{b: raw}
	for it.next() {
		if most := s.limits.AckHandles; len(list) >= most {
			return nil, errcode.New(errcode.TooLarge, "more than %d receipt handles in one request; nothing was settled", most).With("limit", most)
		}
		if it.value[0] != '"' {
			return nil, errcode.New(errcode.InvalidArgument, "receipt handle %d is not a string", len(list))
		}
		text, _, ok := unquote(nil, it.value)
		if !ok || len(text) == 0 {
			return nil, errcode.New(errcode.InvalidArgument, "receipt handle %d is empty or no text", len(list))
		}
		list = append(list, string(text))
	}
	return list, nil
}

// settled answers a list, one result per handle in its order.
func (x *exchange) settled(results []error) {
	out := x.buffer()
	out.b = append(out.b, `{"results":[`...)
	for i, err := range results {
		if i > 0 {
			out.b = append(out.b, ',')
		}
		if err == nil {
			out.b = append(out.b, `{"status":204}`...)
			continue
		}
		f := failureOf(err)
		out.b = append(out.b, `{"status":`...)
		out.b = strconv.AppendInt(out.b, int64(statusOf(f.code)), 10)
		out.b = append(out.b, ',')
		out.b = append(out.b, f.appendJSON(nil)[1:]...)
	}
	out.b = append(out.b, "]}\n"...)
	x.reply(http.StatusOK, typeJSON, out.b)
}
