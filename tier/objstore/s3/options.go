package s3

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Checksum modes.
const (
	ChecksumAuto = "auto"          // CRC-32C when known, verified again on Get
	ChecksumOff  = "when_required" // no x-amz-checksum header on any request
)

// Options of Open. What is empty comes from the environment as the AWS tools read
// it (AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_PROFILE, shared
// files, the instance's role).
type Options struct {
	Bucket string // required
	Prefix string // under which all keys live, without slashes at its ends

	Endpoint  string // http(s) URL of a store that is not AWS
	Region    string // default for an own endpoint: us-east-1
	PathStyle *bool  // bucket in the path, not in the host name; default: true for an own endpoint

	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	Profile         string // of the shared configuration files

	SSE         string // server-side encryption: "", "AES256", "aws:kms"
	SSEKMSKeyID string // with aws:kms; empty = the bucket's default key
	Checksums   string // ChecksumAuto (default) or ChecksumOff

	SinglePut int64 // largest body that goes up in one request; default 64 MiB
	PartBytes int64 // of larger ones; default 16 MiB, at least 5 MiB, more when 10,000 parts would not do
}

const (
	minPart         = 5 << 20 // S3's least size of a part that is not the last
	maxParts        = 10_000  // S3's most parts
	maxObject       = 5 << 40 // S3's largest object
	hashHere        = 1 << 20 // up to here a body without a SHA-256 is hashed here whatever else is known
	idleConns       = 64      // kept per host: what the pools of objstore run at once
	maxAnswerHeader = 64 << 10
)

// validate fills defaults and reports the first option that cannot be.
func (o *Options) validate() error {
	bad := func(format string, args ...any) error {
		return errcode.New(errcode.InvalidArgument, "s3 store: "+format, args...)
	}
	if o.Checksums == "" {
		o.Checksums = ChecksumAuto
	}
	if o.SinglePut == 0 {
		o.SinglePut = 64 << 20
	}
	if o.PartBytes == 0 {
		o.PartBytes = 16 << 20
	}
	switch {
	case !bucketName(o.Bucket):
		return bad("the bucket name %q is not valid: 3 to 63 of a-z, 0-9, - and .", o.Bucket)
	case o.Prefix != "" && objstore.CheckKey(o.Prefix) != nil:
		return bad("the prefix %q cannot begin a key: use letters, digits and /._-, no slash at its ends", o.Prefix)
	case len(o.Prefix) > 1024-1-objstore.MaxKeyBytes:
		return bad("the prefix %q is too long: S3 keys end at 1024 bytes", o.Prefix)
	case o.SSE != "" && o.SSE != "AES256" && o.SSE != "aws:kms":
		return bad("server-side encryption %q is unknown: use AES256 or aws:kms", o.SSE)
	case o.SSEKMSKeyID != "" && o.SSE != "aws:kms":
		return bad("a KMS key id needs the server-side encryption aws:kms")
	case o.Checksums != ChecksumAuto && o.Checksums != ChecksumOff:
		return bad("the checksum mode %q is unknown: use %s or %s", o.Checksums, ChecksumAuto, ChecksumOff)
	case (o.AccessKeyID == "") != (o.SecretAccessKey == ""):
		return bad("access key and secret key go together")
	case o.PartBytes < minPart:
		return bad("parts of %d bytes are too small: at least %d", o.PartBytes, int64(minPart))
	case o.SinglePut < 0 || o.SinglePut > 5<<30:
		return bad("single puts of %d bytes: S3 takes at most 5 GiB in one request", o.SinglePut)
	}
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return bad("the endpoint %q is not a URL like https://host:port", o.Endpoint)
		}
	}
	return nil
}

func bucketName(b string) bool {
	if len(b) < 3 || len(b) > 63 {
		return false
	}
	return strings.Trim(b, "abcdefghijklmnopqrstuvwxyz0123456789.-_") == ""
}

// Open returns a store on a bucket. It asks the store nothing: a node starts
// when its archive is down.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	transport := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = idleConns
		t.MaxIdleConns = 2 * idleConns
		t.IdleConnTimeout = 60 * time.Second
		t.MaxResponseHeaderBytes = maxAnswerHeader
	})
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(transport),
		config.WithLogger(logging.Nop{}), // errors are returned; nobody reads a second log
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
	}
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	if o.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(o.Profile))
	}
	if o.AccessKeyID != "" {
		load = append(load, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(o.AccessKeyID, o.SecretAccessKey, o.SessionToken)))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, errcode.New(errcode.InvalidArgument, "s3 store: the AWS configuration does not load: %s", err.Error())
	}
	client := sdk.NewFromConfig(cfg, func(c *sdk.Options) {
		if o.Endpoint != "" {
			c.BaseEndpoint = aws.String(o.Endpoint)
		}
		own := c.BaseEndpoint != nil
		if c.Region == "" && own {
			c.Region = "us-east-1"
		}
		c.UsePathStyle = own
		if o.PathStyle != nil {
			c.UsePathStyle = *o.PathStyle
		}
		c.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		c.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		c.DisableLogOutputChecksumValidationSkipped = true
		c.APIOptions = append(c.APIOptions, refuseErrorIn200)
		if o.Checksums == ChecksumOff {
			c.APIOptions = append(c.APIOptions, md5ForDelete)
		}
	})
	resolved := client.Options()
	if resolved.Region == "" {
		return nil, errcode.New(errcode.InvalidArgument, "s3 store: no region: add region=... to the URL or set AWS_REGION")
	}
	s := &Store{client: client, opts: o, idle: transport}
	s.url = o.publicURL(resolved)
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
	}
	return s, nil
}

// publicURL returns where the store lives, without credentials.
func (o *Options) publicURL(c sdk.Options) string {
	q := url.Values{}
	if c.BaseEndpoint != nil {
		q.Set("endpoint", *c.BaseEndpoint)
	}
	q.Set("region", c.Region)
	u := url.URL{Scheme: "s3", Host: o.Bucket, RawQuery: q.Encode()}
	if o.Prefix != "" {
		u.Path = "/" + o.Prefix
	}
	return u.String()
}
