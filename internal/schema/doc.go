// Package schema is what every part of fenceline agrees on about the PostgreSQL
// schema it lives in: which names are allowed, how they are quoted, what the
// group roles are called, how SQL templates become SQL, and whether the schema
// that is found fits the library that looks at it.
//
// # Names
//
// A schema name can't be a query parameter, so it is defended twice: Validate
// admits only names in which quoting changes nothing, and Quote quotes them all
// the same. Validate is called once, when a component is constructed; SQL text
// is expanded then as well, and no later code builds SQL from strings.
//
// # Levels
//
// The tables come in two parts, Producer and Consumer, each with migrations
// numbered from 1. A library's level in a part is the number of the newest
// migration that it knows (Level). Each migration records the oldest level that
// may still run on it. So there are two ways not to fit, and Check tells them
// apart:
//
//   - the schema's newest migration is below the library's level: the schema is
//     too old, migrate it before the library is rolled out;
//   - the library's level is below what some applied migration demands: the
//     library is too old, roll it out before (or instead of) that migration.
//
// Everything between is a rolling upgrade: new schema, old and new libraries
// side by side.
package schema
