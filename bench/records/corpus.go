package records

import (
	"fmt"
	"math/rand/v2"

	"github.com/klauspost/compress/zstd"
)

// Kind is what fills records.
type Kind string

// Kinds of filling.
const (
	Text  Kind = "text"  // zstd makes it about four times smaller
	Noise Kind = "noise" // nothing makes it smaller
)

// ParseKind reads the name of a kind.
func ParseKind(name string) (Kind, error) {
	switch k := Kind(name); k {
	case Text, Noise:
		return k, nil
	}
	return "", fmt.Errorf("%q is no kind of record; there are text and noise", name)
}

// corpusBytes is how far a stream gets before its text comes again. Compressors
// look back less.
const corpusBytes = 8 << 20

// Corpus is what records are cut from.
type Corpus struct {
	kind Kind
	data []byte
}

// NewCorpus makes a corpus. The same seed makes the same bytes.
func NewCorpus(kind Kind, seed uint64) *Corpus {
	c := &Corpus{kind: kind, data: make([]byte, 0, corpusBytes)}
	if kind == Noise {
		c.data = c.data[:corpusBytes]
		var key [32]byte
		for i := range 8 {
			key[i] = byte(seed >> (8 * i))
		}
		_, _ = rand.NewChaCha8(key).Read(c.data) // never fails
		return c
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	vocabulary := make([]string, 1500)
	for i := range vocabulary {
		w := make([]byte, 3+rng.IntN(8))
		for k := range w {
			w[k] = byte('a' + rng.IntN(26))
		}
		vocabulary[i] = string(w) + " "
	}
	pick := rand.NewZipf(rng, 1.35, 2, uint64(len(vocabulary)-1))
	for len(c.data) < corpusBytes-16 {
		c.data = append(c.data, vocabulary[pick.Uint64()]...)
	}
	return c
}

// Kind is what the corpus is made of.
func (c *Corpus) Kind() Kind { return c.kind }

// fill copies the bytes from position at on into dst, round and round, and
// returns the position behind them.
func (c *Corpus) fill(dst []byte, at int) int {
	for len(dst) > 0 {
		n := copy(dst, c.data[at:])
		dst = dst[n:]
		if at += n; at == len(c.data) {
			at = 0
		}
	}
	return at
}

// Ratio is how much smaller zstd at its fastest makes block bytes of records of
// the given size, stamps included: 4 = a quarter remains.
func (c *Corpus) Ratio(size, block int) (float64, error) {
	src, err := NewRun(c, size, 1).Source(0)
	if err != nil {
		return 0, err
	}
	var raw []byte
	for len(raw) < max(block, size) {
		raw = src.Append(raw, 0)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, err
	}
	defer func() { _ = enc.Close() }() // it writes nowhere
	return float64(len(raw)) / float64(len(enc.EncodeAll(raw, nil))), nil
}
