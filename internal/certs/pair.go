package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// maxPEM bounds what is read of a file of certificates or of a key.
const maxPEM = 1 << 20

// Pair is a certificate with its chain and its private key.
type Pair struct {
	cert tls.Certificate
}

// Load reads a certificate with its chain and the key that belongs to it, both
// in PEM. A key that does not fit, and a certificate that is over or not valid
// yet by the clock, are errors: no client would accept it.
func Load(certFile, keyFile string, now time.Time) (*Pair, error) {
	cert, err := read("certificate file", certFile)
	if err != nil {
		return nil, err
	}
	key, err := read("key file", keyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", certFile, keyFile, err)
	}
	p := &Pair{cert: pair}
	switch {
	case now.After(p.NotAfter()):
		return nil, fmt.Errorf("certificate %s is over since %s: put a new one in its place", certFile, p.NotAfter().UTC().Format(time.RFC3339))
	case now.Before(pair.Leaf.NotBefore):
		return nil, fmt.Errorf("certificate %s is not valid before %s: look at the clock of this machine, or wait", certFile, pair.Leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return p, nil
}

// NotAfter is when the certificate is over.
func (p *Pair) NotAfter() time.Time { return p.cert.Leaf.NotAfter }

// Equal says whether two pairs show the same chain.
func (p *Pair) Equal(q *Pair) bool {
	return q != nil && slices.EqualFunc(p.cert.Certificate, q.cert.Certificate, bytes.Equal)
}

// Subject names the certificate for a log.
func (p *Pair) Subject() string { return p.cert.Leaf.Subject.String() }

// Client returns the configuration of a client that trusts the authorities in a
// file of certificates in PEM, and no others; the system's when file is "".
func Client(file string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if file == "" {
		return c, nil
	}
	text, err := read("CA file", file)
	if err != nil {
		return nil, err
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA file %s holds no certificate in PEM", file)
	}
	return c, nil
}

func read(what, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", what, path, err)
	}
	if len(b) > maxPEM {
		return nil, fmt.Errorf("%s %s is larger than 1 MiB", what, path)
	}
	return b, nil
}
