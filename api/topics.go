package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
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

// specFields are the fields of a new topic; laterSpecFields those that a later
// build knows.
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
	spec, err := decodeSpec(body)
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

// decodeSpec reads a new topic's settings strictly: field names to the letter,
// none twice, nothing after the object.
func decodeSpec(body []byte) (TopicSpec, error) {
	var spec TopicSpec
	it, err := oneObject(body)
	if err != nil {
		return spec, err
	}
	var seen []string
	for it.next() {
		text, _, _ := unquote(nil, it.name)
		name := string(text)
		switch {
		case slices.Contains(seen, name):
			return spec, errcode.New(errcode.InvalidArgument, "the field %q is given twice", name)
		case slices.Contains(laterSpecFields, name):
			return spec, laterf(errcode.InvalidArgument, "field", name)
		case !slices.Contains(specFields, name):
			return spec, unknownField(it.name, listOf(specFields))
		}
		seen = append(seen, name)
	}
	if err := endOfObject(body, it.at); err != nil {
		return spec, err
	}
	if err := json.Unmarshal(body, &spec); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return spec, errcode.New(errcode.InvalidArgument, "the field %q cannot be %.60s", wrong.Field, wrong.Value)
		}
		return spec, errcode.New(errcode.InvalidArgument, "the body is no topic: %v", err)
	}
	return spec, broker.ValidateName("topic", spec.Name)
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
