// Package quakes has the demo's input: a week of real earthquake reports.
// Credit: U.S. Geological Survey, public domain; see README.md beside this file.
package quakes
