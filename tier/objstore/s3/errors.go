package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	awsmw "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// codes are the answers whose spelling says more than their status, by kind.
// Several stores invent their own words for the same thing.
var codes = map[string]errcode.Code{
	"PreconditionFailed":           errcode.Exists,
	"ConditionalRequestConflict":   errcode.Transient, // another writer is at work: ask again
	"OperationAborted":             errcode.Transient,
	"SlowDown":                     errcode.Throttled,
	"SlowDownRead":                 errcode.Throttled,
	"SlowDownWrite":                errcode.Throttled,
	"Throttling":                   errcode.Throttled,
	"ThrottlingException":          errcode.Throttled,
	"ThrottledException":           errcode.Throttled,
	"RequestThrottled":             errcode.Throttled,
	"RequestLimitExceeded":         errcode.Throttled,
	"TooManyRequests":              errcode.Throttled,
	"TooManyRequestsException":     errcode.Throttled,
	"BandwidthLimitExceeded":       errcode.Throttled,
	"ServiceUnavailable":           errcode.Throttled,
	"BadDigest":                    errcode.Corrupt,
	"XAmzContentSHA256Mismatch":    errcode.Corrupt,
	"XAmzContentChecksumMismatch":  errcode.Corrupt,
	"RequestTimeout":               errcode.Transient, // with status 400: the body came too slowly
	"IncompleteBody":               errcode.Transient,
	"InternalError":                errcode.Transient,
	"QuotaExceeded":                errcode.Transient, // somebody frees or buys space
	"InsufficientStorage":          errcode.Transient,
	"XMinioStorageFull":            errcode.Transient,
	"XMinioServerNotInitialized":   errcode.Transient,
	"AccessDenied":                 errcode.Denied,
	"AllAccessDisabled":            errcode.Denied,
	"InvalidAccessKeyId":           errcode.Denied,
	"SignatureDoesNotMatch":        errcode.Denied,
	"XAdminUserNotFound":           errcode.Denied, // with status 404
	"NoSuchAccessKey":              errcode.Denied,
	"ExpiredToken":                 errcode.Denied,
	"InvalidToken":                 errcode.Denied,
	"RequestTimeTooSkewed":         errcode.Denied,
	"AuthorizationHeaderMalformed": errcode.Denied,
	"EntityTooLarge":               errcode.InvalidArgument,
	"KeyTooLongError":              errcode.InvalidArgument,
	"NoSuchBucket":                 errcode.Internal,
	"NoSuchUpload":                 errcode.Transient, // somebody swept it: begin again
	"NotImplemented":               errcode.Internal,
}

// advice is what to do about answers that an operator can repair.
//
//nolint:gosec // words of the protocol, no credentials
var advice = map[string]string{
	"NoSuchBucket":                 "; create the bucket, or correct its name",
	"InvalidAccessKeyId":           "; check the access key",
	"XAdminUserNotFound":           "; check the access key",
	"SignatureDoesNotMatch":        "; check the secret key",
	"RequestTimeTooSkewed":         "; set this machine's clock",
	"AuthorizationHeaderMalformed": "; check the region",
	"PermanentRedirect":            "; check region and endpoint",
	"ExpiredToken":                 "; renew the session token",
	"NotImplemented":               "; this store lacks what an archive needs",
	"AccessDenied":                 "; allow get, put, list and delete on the prefix",
}

// codeFor returns the code of an answer, by its spelling and else by its status.
func codeFor(status int, spelled string) errcode.Code {
	if c, ok := codes[spelled]; ok {
		return c
	}
	switch {
	case status == http.StatusPreconditionFailed:
		return errcode.Exists
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return errcode.Throttled
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return errcode.Denied
	case status/100 == 2: // and yet an error: the answer broke, or is not what was asked for
		return errcode.Transient
	case status == http.StatusConflict, status == http.StatusRequestTimeout, status >= 500 && status != http.StatusNotImplemented:
		return errcode.Transient
	default: // a 404 that is not NoSuchKey, redirects, requests that the store cannot read
		return errcode.Internal
	}
}

// fail turns an error of the SDK into one of ours. The SDK's types end here.
func (s *Store) fail(ctx context.Context, op, key string, err error) error {
	if ended := objstore.Ended(ctx, op, key); ended != nil {
		return ended
	}
	status := statusOf(err)
	var api smithy.APIError
	if errors.As(err, &api) || status != 0 {
		return s.answered(op, key, status, api, retryAfter(err))
	}
	var coded *errcode.Error
	if errors.As(err, &coded) {
		return coded
	}
	var sent *url.Error
	if errors.As(err, &sent) {
		return errcode.Wrap(errcode.Transient, sent.Err, "%s %s: reach the store", op, key)
	}
	var encode *smithy.SerializationError
	if errors.As(err, &encode) {
		return errcode.New(errcode.Internal, "%s %s: build the request: %s", op, key, err.Error())
	}
	if strings.Contains(err.Error(), "credentials") {
		return errcode.New(errcode.Denied, "%s %s: no usable credentials: %s", op, key, err.Error())
	}
	return errcode.New(errcode.Transient, "%s %s: %s", op, key, err.Error())
}

// answered makes the error of an answer that the store gave.
func (s *Store) answered(op, key string, status int, api smithy.APIError, wait time.Duration) error {
	var spelled, msg string
	if api != nil {
		spelled, msg = api.ErrorCode(), api.ErrorMessage()
	}
	code := codeFor(status, spelled)
	// The one place that NotFound comes from.
	if status == http.StatusNotFound && spelled == "NoSuchKey" && strings.HasPrefix(op, "get") {
		code = errcode.NotFound
	}
	text := strings.TrimSpace(strconv.Itoa(status) + " " + spelled)
	if msg != "" {
		text += ": " + msg
	}
	return errcode.New(code, "%s %s in bucket %s: the store answered %.300s%s", op, key, s.opts.Bucket, text, advice[spelled]).After(wait)
}

// pastEnd reports whether the range begins at or past the object's end.
func pastEnd(err error) bool {
	return err != nil && statusOf(err) == http.StatusRequestedRangeNotSatisfiable
}

// statusOf returns the HTTP status of an error, 0 when there was no answer.
func statusOf(err error) int {
	var resp *awshttp.ResponseError
	if errors.As(err, &resp) {
		return resp.HTTPStatusCode()
	}
	return 0
}

// retryAfter returns how long the store asked to wait, at most a minute.
func retryAfter(err error) time.Duration {
	var resp *awshttp.ResponseError
	if !errors.As(err, &resp) || resp.Response == nil {
		return 0
	}
	seconds, perr := strconv.Atoi(resp.Response.Header.Get("Retry-After"))
	if perr != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds), 60) * time.Second
}

// refuseErrorIn200 makes an answer 200 whose body is an error document the
// failure that it is: long operations send their status before they know how
// they end, and proxies answer with what they like.
func refuseErrorIn200(stack *middleware.Stack) error {
	return stack.Deserialize.Insert(errorIn200{}, "OperationDeserializer", middleware.After)
}

type errorIn200 struct{}

func (errorIn200) ID() string { return "Tidemark:ErrorIn200" }

// peekBytes is how much of an answer is looked at: an XML declaration, white
// space that a store sends to keep the connection alive, and the root element.
const peekBytes = 64 << 10

func (errorIn200) HandleDeserialize(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
	middleware.DeserializeOutput, middleware.Metadata, error,
) {
	out, meta, err := next.HandleDeserialize(ctx, in)
	resp, ok := out.RawResponse.(*smithyhttp.Response)
	// The body of GetObject is the object, which may be any XML.
	if err != nil || !ok || resp.StatusCode/100 != 2 || awsmw.GetOperationName(ctx) == "GetObject" {
		return out, meta, err
	}
	head, rerr := io.ReadAll(io.LimitReader(resp.Body, peekBytes))
	rest := io.Reader(resp.Body)
	if rerr != nil {
		rest = errReader{rerr}
	}
	if isErrorDocument(head) {
		resp.StatusCode = http.StatusInternalServerError
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), resp.Body}
	return out, meta, nil
}

// isErrorDocument reports whether the root element is Error.
func isErrorDocument(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n\ufeff")
	if bytes.HasPrefix(b, []byte("<?")) {
		_, after, ok := bytes.Cut(b, []byte("?>"))
		if !ok {
			return false
		}
		b = bytes.TrimLeft(after, " \t\r\n")
	}
	rest, ok := bytes.CutPrefix(b, []byte("<Error"))
	return ok && len(rest) > 0 && bytes.IndexByte([]byte("> \t\r\n/"), rest[0]) >= 0
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// spelling returns the store's word for an error, "" when it gave none.
func spelling(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}
