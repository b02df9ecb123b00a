package main

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// grid is a table for people: columns without lines, numbers to the right.
type grid struct{ w table.Writer }

// newTable returns a table with these headings; without any it has none.
func newTable(headings ...string) *grid {
	w := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	w.SetStyle(style)
	w.SuppressTrailingSpaces()
	if len(headings) > 0 {
		w.AppendHeader(rowOf(headings))
	}
	return &grid{w}
}

func rowOf[T any](cells []T) table.Row {
	row := make(table.Row, len(cells))
	for i, c := range cells {
		row[i] = c
	}
	return row
}

func (g *grid) row(cells ...any) { g.w.AppendRow(cells) }

// print writes the table.
func (g *grid) print(w io.Writer) error {
	_, err := io.WriteString(w, g.w.Render()+"\n")
	return err
}
