package verify_test

import (
	"os"
	"testing"

	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
