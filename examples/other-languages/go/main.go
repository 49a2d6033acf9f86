// Start an order, answer its gate, signal its payment, and read its result:
// go mod tidy && go run . order-1
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	start = `select run_key, is_new from pgflow.start_run(workflow => $1::text, key => $2::text, input => $3::json)`
	gates = `select gate, name, payload_hash from pgflow.gates where key = $1::text`
	reply = `select pgflow.answer_gate(gate => $1::text, verdict => 'approve', payload_hash => $2::text)`
	sent  = `select pgflow.send_signal(key => $1::text, name => $2::text, payload => $3::json)`
	ended = `select status, coalesce(output::text, '') from pgflow.result(key => $1::text)`
)

func answerAndPay(ctx context.Context, db *pgx.Conn, order string) error {
	var gate, name, hash string
	for {
		err := db.QueryRow(ctx, gates, order).Scan(&gate, &name, &hash)
		if err == nil {
			break
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	if _, err := db.Exec(ctx, reply, gate, hash); err != nil {
		return err
	}
	fmt.Printf("approved %s\n", name)
	_, err := db.Exec(ctx, sent, order, "paid", map[string]string{"by": "card"})
	return err
}

func fulfil(ctx context.Context, db *pgx.Conn, order string) error {
	var key, status, output string
	var isNew bool
	input := map[string]any{"order_id": order, "cents": 25000}
	if err := db.QueryRow(ctx, start, "fulfil", order, input).Scan(&key, &isNew); err != nil {
		return err
	}
	fmt.Printf("started %s, new: %t\n", key, isNew)
	if isNew { // else a run before this one has answered and paid
		if err := answerAndPay(ctx, db, order); err != nil {
			return err
		}
	}
	for status != "completed" && status != "failed" && status != "cancelled" {
		time.Sleep(100 * time.Millisecond)
		if err := db.QueryRow(ctx, ended, order).Scan(&status, &output); err != nil {
			return err
		}
	}
	fmt.Printf("%s: %s\n", status, output)
	return nil
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("PGFLOW_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	err = fulfil(ctx, db, os.Args[1])
	var ours *pgconn.PgError
	if errors.As(err, &ours) {
		log.Fatalf("%s: %s (%s)", ours.Code, ours.Message, ours.Hint)
	} else if err != nil {
		log.Fatal(err)
	}
}
