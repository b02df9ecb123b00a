package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	redisStream = "bench"
	redisGroup  = "readers"
	redisTime   = 30 * time.Second // for one answer
)

// redisSystem is Redis Streams with an append-only file that is synced by policy.
func redisSystem(program, policy string) system {
	synced := "on disk, synced"
	if policy != "always" {
		synced = "written to a file; a crash of the machine may lose a second"
	}
	s := system{Name: "Redis, AOF " + policy, Settings: "appendonly yes, appendfsync " + policy + ", save \"\"; Streams"}
	s.Promises = map[string]string{
		rowProduce: synced, rowBatch: synced, rowConsume: "the ack is " + synced, rowConsume100: "the acks are " + synced, rowE2E: synced,
	}
	s.open = func(ctx context.Context, work string) (peer, error) { return openRedis(ctx, program, work, policy) }
	return s
}

// redisPeer is a Redis server.
type redisPeer struct {
	srv *server
	dir string
	db  *redis.Client
}

func openRedis(ctx context.Context, program, work, policy string) (peer, error) {
	dir, err := under(work, "redis")
	if err != nil {
		return nil, err
	}
	p := &redisPeer{dir: dir}
	p.srv, err = startServer(ctx, program, func(port string) []string {
		return []string{"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--appendonly", "yes", "--appendfsync", policy, "--save", "", "--daemonize", "no"}
	}, p.ready)
	if err == nil {
		err = p.db.XGroupCreateMkStream(ctx, redisStream, redisGroup, "0").Err()
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func redisOptions(addr string) *redis.Options {
	// One connection, and no second try: what a benchmark measures is done once.
	return &redis.Options{Addr: addr, PoolSize: 1, MaxRetries: -1, ReadTimeout: redisTime, WriteTimeout: redisTime, DisableIdentity: true}
}

// ready connects.
func (p *redisPeer) ready(ctx context.Context, addr string) error {
	if p.db == nil || p.db.Options().Addr != addr {
		p.close()
		p.db = redis.NewClient(redisOptions(addr))
	}
	return p.db.Ping(ctx).Err()
}

func (p *redisPeer) close() {
	if p.db != nil {
		_ = p.db.Close() // all of it was answered
	}
}

func (p *redisPeer) stored(ctx context.Context) (int64, error) {
	return p.db.XLen(ctx, redisStream).Result()
}

func (p *redisPeer) stop() (err error) {
	p.close()
	if p.srv != nil {
		err = p.srv.stop()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

func (p *redisPeer) dial(ctx context.Context) (worker, error) {
	w := &redisWorker{db: redis.NewClient(redisOptions(p.srv.addr))}
	if err := w.db.Ping(ctx).Err(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

type redisWorker struct {
	db  *redis.Client
	ids []string
}

func redisAdd(value []byte) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: redisStream, Values: []any{"r", value}}
}

func (w *redisWorker) send(ctx context.Context, value []byte) error {
	return w.db.XAdd(ctx, redisAdd(value)).Err()
}

func (w *redisWorker) sendAll(ctx context.Context, values [][]byte) error {
	_, err := w.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, v := range values {
			p.XAdd(ctx, redisAdd(v))
		}
		return nil
	})
	return err
}

func (w *redisWorker) take(ctx context.Context, n int, got func([]byte)) (int, error) {
	streams, err := w.db.XReadGroup(ctx, &redis.XReadGroupArgs{Group: redisGroup, Consumer: "c", Streams: []string{redisStream, ">"}, Count: int64(n), Block: takeWait}).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	w.ids = w.ids[:0]
	for _, s := range streams {
		for _, m := range s.Messages {
			text, _ := m.Values["r"].(string) // anything else is no record, and said to be one that changed
			got([]byte(text))
			w.ids = append(w.ids, m.ID)
		}
	}
	return len(w.ids), w.db.XAck(ctx, redisStream, redisGroup, w.ids...).Err()
}

func (w *redisWorker) follow(ctx context.Context, got func([]byte) bool) error {
	more := true
	for more {
		if _, err := w.take(ctx, 1, func(v []byte) { more = got(v) }); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (w *redisWorker) close() { _ = w.db.Close() }
