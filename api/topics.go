package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Pages of the list of topics.
const (
	topicPage    = 100
	topicPageMax = 1000
)

// specFields are the fields of a topic; laterSpecFields those that a later build
// knows.
var (
	specFields = []string{
		"name", "partitions", "retention_ms", "retention_bytes", "local_retention_ms", "local_retention_bytes",
		"visibility_timeout_ms", "max_in_flight_per_partition", "max_record_bytes", "default_ack", "failover", "compression",
	}
	laterSpecFields = []string{"max_deliveries", "schema", "parent", "fanout_delay_ms"}
)

func (s *Server) createTopic(x *exchange) error {
	body, err := x.readBody(s.limits.SmallBody, "the body")
	if err != nil {
		return err
	}
	spec, err := decodeTopic(body)
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	info, err := s.broker.CreateTopic(ctx, spec)
	if err != nil {
		return err
	}
	x.Header()["Location"] = []string{"/v1/topics/" + spec.Name}
	return x.replyJSON(http.StatusCreated, info)
}

// setTopic changes settings of a topic, all that the body names or none.
func (s *Server) setTopic(x *exchange) error {
	body, err := x.readBody(s.limits.SmallBody, "the body")
	if err != nil {
		return err
	}
	change, err := decodeChange(body)
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	info, err := s.broker.SetTopic(ctx, x.topic, change)
	if err != nil {
		return err
	}
	return x.replyJSON(http.StatusOK, info)
}

// decodeTopic reads a new topic. Null is the same as leaving a field out.
func decodeTopic(body []byte) (TopicSpec, error) {
	var p broker.Problems
	spec, err := decodeSpec(body, &p, func(string, []byte) string { return "" })
	if err != nil {
		return spec, err
	}
	spec.CheckNew(&p)
	return spec, p.Err("topic")
}

// decodeChange reads the settings to change. There is no value that stands for
// the default: who sends null may mean that, or nothing.
func decodeChange(body []byte) (TopicSpec, error) {
	var p broker.Problems
	spec, err := decodeSpec(body, &p, func(name string, value []byte) string {
		switch {
		case name == "name":
			return broker.FixedName
		case name == "partitions":
			return broker.FixedPartitions
		case isNull(value):
			return "is null; leave the field out to keep what it is, or say the value"
		}
		return ""
	})
	if err != nil {
		return spec, err
	}
	spec.Check(&p)
	return spec, p.Err("change of the topic")
}

// decodeSpec reads settings strictly: field names to the letter, none twice,
// nothing after the object. What is wrong with single fields is noted in p, also
// what refuse says of one; a body that is no object is an error.
func decodeSpec(body []byte, p *broker.Problems, refuse func(name string, value []byte) string) (TopicSpec, error) {
	var spec TopicSpec
	it, err := oneObject(body)
	if err != nil {
		return spec, err
	}
	var seen []string
	for !p.Full() && it.next() {
		text, _, _ := unquote(nil, it.name)
		name := string(text)
		field := specField(&spec, name)
		switch {
		case slices.Contains(seen, name):
			p.Add(name, "is given twice")
		case slices.Contains(laterSpecFields, name):
			p.Add(name, "is not in this build; leave it out")
		case field == nil:
			p.Add(fmt.Sprintf("%.60s", name), "is unknown; a topic has %s", listOf(specFields))
		default:
			seen = append(seen, name)
			if why := refuse(name, it.value); why != "" {
				p.Add(name, "%s", why)
			} else if err := json.Unmarshal(it.value, field); err != nil {
				p.Add(name, "is %.40s, and not %s", it.value, kindOf(field))
			}
		}
	}
	if p.Full() {
		return spec, nil
	}
	return spec, endOfObject(body, it.at)
}

// specField returns where a setting is kept, nil when there is none of the name.
func specField(s *TopicSpec, name string) any {
	switch name {
	case "name":
		return &s.Name
	case "partitions":
		return &s.Partitions
	case "retention_ms":
		return &s.RetentionMS
	case "retention_bytes":
		return &s.RetentionBytes
	case "local_retention_ms":
		return &s.LocalRetentionMS
	case "local_retention_bytes":
		return &s.LocalRetentionBytes
	case "visibility_timeout_ms":
		return &s.VisibilityTimeoutMS
	case "max_in_flight_per_partition":
		return &s.MaxInFlightPerPartition
	case "max_record_bytes":
		return &s.MaxRecordBytes
	case "default_ack":
		return &s.DefaultAck
	case "failover":
		return &s.Failover
	case "compression":
		return &s.Compression
	}
	return nil
}

// kindOf names what a field takes.
func kindOf(field any) string {
	switch field.(type) {
	case **int64:
		return "a whole number in the range of 64 bits"
	case **uint32:
		return "a whole number from 0 on in the range of 32 bits"
	}
	return "a string"
}

// topicList is the answer to a list of topics.
type topicList struct {
	Topics        []TopicInfo `json:"topics"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

func (s *Server) listTopics(x *exchange) error {
	limit, err := x.query.whole("limit", topicPage, 1, topicPageMax)
	if err != nil {
		return err
	}
	after, err := x.pageToken()
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	topics, more, err := s.broker.Topics(ctx, after, int(limit))
	if err != nil {
		return err
	}
	list := topicList{Topics: topics}
	if list.Topics == nil {
		list.Topics = []TopicInfo{} // an empty list, not null
	}
	if more && len(topics) > 0 {
		list.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(topics[len(topics)-1].Name))
	}
	return x.replyJSON(http.StatusOK, list)
}

// pageToken decodes the name after which a page begins.
func (x *exchange) pageToken() (string, error) {
	token, ok := x.query.get("page_token")
	if !ok || token == "" {
		return "", nil
	}
	name, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || broker.ValidateName("topic", string(name)) != nil {
		return "", errcode.New(errcode.InvalidArgument, "parameter page_token is not one that this route gave out")
	}
	return string(name), nil
}

func (s *Server) describeTopic(x *exchange) error {
	ctx, cancel := s.bounded()
	defer cancel()
	info, err := s.broker.Topic(ctx, x.topic)
	if err != nil {
		return err
	}
	x.info = info
	only, err := x.partition()
	if err != nil {
		return err
	}
	if only >= 0 {
		info.PartitionStats = slices.DeleteFunc(slices.Clone(info.PartitionStats), func(p PartitionStats) bool { return p.Index != uint32(only) })
	}
	return x.replyJSON(http.StatusOK, info)
}

func (s *Server) deleteTopic(x *exchange) error {
	force, err := x.query.flag("force")
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	if err := s.broker.DeleteTopic(ctx, x.topic, force); err != nil {
		return err
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}

// replyJSON answers with v where speed does not matter.
func (x *exchange) replyJSON(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "encode the answer of %s", x.template())
	}
	x.reply(status, typeJSON, append(body, '\n'))
	return nil
}
