package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	natsStream  = "BENCH"
	natsSubject = "bench"
	natsGroup   = "readers"
	takeWait    = 200 * time.Millisecond
)

// natsSystem is JetStream with a file store and one replica, with a sync for each
// write or with the server's default.
func natsSystem(program, sync string) system {
	s := system{Name: "JetStream, sync always", Settings: "file storage, 1 replica, sync_interval: always"}
	produced := "on disk, synced"
	if sync == "" {
		s.Name = "JetStream, default"
		s.Settings = "file storage, 1 replica, sync_interval: not set (2 minutes)"
		produced = "written to a file; a crash of the machine may lose two minutes"
	}
	s.Promises = map[string]string{
		rowProduce: produced, rowBatch: produced, rowE2E: produced + "; the ack is sent, not answered",
		rowConsume:    "the ack is answered (double ack); that it is synced is not promised",
		rowConsume100: "the last of 100 acks is answered; that it is synced is not promised",
	}
	s.open = func(ctx context.Context, work string) (peer, error) { return openNATS(ctx, program, work, sync) }
	return s
}

// natsPeer is a NATS server.
type natsPeer struct {
	srv *server
	dir string
	nc  *nats.Conn
	js  jetstream.JetStream
}

func openNATS(ctx context.Context, program, work, sync string) (peer, error) {
	dir, err := under(work, "nats")
	if err != nil {
		return nil, err
	}
	p := &natsPeer{dir: dir}
	config := fmt.Sprintf("jetstream {\n  store_dir: %q\n", filepath.Join(dir, "store"))
	if sync != "" {
		config += "  sync_interval: " + sync + "\n"
	}
	file := filepath.Join(dir, "nats.conf")
	if err = os.WriteFile(file, []byte(config+"}\n"), 0o600); err == nil {
		p.srv, err = startServer(ctx, program, func(port string) []string { return []string{"-a", "127.0.0.1", "-p", port, "-c", file} }, p.ready)
	}
	if err == nil {
		err = p.create(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// ready connects.
func (p *natsPeer) ready(_ context.Context, addr string) (err error) {
	p.nc, err = nats.Connect("nats://" + addr)
	return err
}

// create makes the stream and its consumer.
func (p *natsPeer) create(ctx context.Context) (err error) {
	if p.js, err = jetstream.New(p.nc); err != nil {
		return err
	}
	if _, err = p.js.CreateStream(ctx, jetstream.StreamConfig{Name: natsStream, Subjects: []string{natsSubject}, Storage: jetstream.FileStorage, Replicas: 1}); err != nil {
		return err
	}
	_, err = p.js.CreateConsumer(ctx, natsStream, jetstream.ConsumerConfig{Durable: natsGroup, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1 << 20})
	return err
}

func (p *natsPeer) stored(ctx context.Context) (int64, error) {
	s, err := p.js.Stream(ctx, natsStream)
	if err != nil {
		return 0, err
	}
	info, err := s.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int64(info.State.Msgs), nil
}

func (p *natsPeer) stop() (err error) {
	if p.nc != nil {
		p.nc.Close()
	}
	if p.srv != nil {
		err = p.srv.stop()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

func (p *natsPeer) dial(ctx context.Context) (worker, error) {
	nc, err := nats.Connect("nats://" + p.srv.addr)
	if err != nil {
		return nil, err
	}
	w := &natsWorker{nc: nc}
	if w.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2*batchRecords)); err == nil {
		w.group, err = w.js.Consumer(ctx, natsStream, natsGroup)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return w, nil
}

type natsWorker struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	group jetstream.Consumer
}

func (w *natsWorker) send(ctx context.Context, value []byte) error {
	_, err := w.js.Publish(ctx, natsSubject, value)
	return err
}

func (w *natsWorker) sendAll(ctx context.Context, values [][]byte) error {
	acks := make([]jetstream.PubAckFuture, 0, len(values))
	for _, v := range values {
		ack, err := w.js.PublishAsync(natsSubject, v)
		if err != nil {
			return err
		}
		acks = append(acks, ack)
	}
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (w *natsWorker) take(ctx context.Context, n int, got func([]byte)) (int, error) {
	batch, err := w.group.Fetch(n, jetstream.FetchMaxWait(takeWait))
	if err != nil {
		return 0, err
	}
	var last jetstream.Msg
	count := 0
	for m := range batch.Messages() {
		if last != nil {
			if err := last.Ack(); err != nil {
				return count, err
			}
		}
		got(m.Data())
		last = m
		count++
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		return count, err
	}
	if last == nil {
		return 0, ctx.Err()
	}
	return count, last.DoubleAck(ctx)
}

func (w *natsWorker) follow(ctx context.Context, got func([]byte) bool) error {
	it, err := w.group.Messages()
	if err != nil {
		return err
	}
	defer it.Stop()
	for {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		more := got(m.Data())
		if err := m.Ack(); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}

func (w *natsWorker) close() { w.nc.Close() }
