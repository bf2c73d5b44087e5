package compose_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// broken returns each rule of the house that a set-up breaks.
func broken(project *types.Project) []string {
	var complaints []string
	for _, name := range project.ServiceNames() {
		service := project.Services[name]
		complain := func(format string, args ...any) {
			complaints = append(complaints, name+": "+fmt.Sprintf(format, args...))
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				complain("port %s is published on %q, not on 127.0.0.1", port.Published, port.HostIP)
			}
		}
		// The image of a service that is built here has the name that we give it.
		if service.Build == nil && !pinned(service.Image) {
			complain("image %q isn't pinned to a release", service.Image)
		}
		if root(service.User) {
			complain("runs as root (user is %q)", service.User)
		}
		if service.Privileged || len(service.CapAdd) > 0 || !slices.Contains(service.CapDrop, "ALL") {
			complain("keeps capabilities")
		}
		if service.Build != nil && !service.ReadOnly {
			complain("can write to its root file system")
		}
		for key, value := range service.Environment {
			if value != nil && secret(key) && !strings.HasSuffix(key, "_FILE") {
				complain("%s holds a secret in the environment; give it as %s_FILE", key, key)
			}
		}
		for needed, dependency := range service.DependsOn {
			other := project.Services[needed]
			switch dependency.Condition {
			case types.ServiceConditionHealthy:
				if other.HealthCheck == nil || other.HealthCheck.Disable || len(other.HealthCheck.Test) == 0 {
					complain("waits until %s is healthy, which has no health check", needed)
				}
			case types.ServiceConditionCompletedSuccessfully:
				if other.Restart != types.RestartPolicyNo {
					complain("waits until %s has ended, which is started again when it ends (restart is %q)", needed, other.Restart)
				}
			default:
				complain("waits for %s to be started, which says nothing about it being ready", needed)
			}
		}
		if strings.HasPrefix(service.Restart, types.RestartPolicyUnlessStopped) && service.HealthCheck == nil {
			complain("runs for good without a health check")
		}
	}
	return complaints
}

var release = regexp.MustCompile(`:\d+\.\d+(\.\d+)?(-[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?$`)

// pinned reports whether an image's tag names a release and not whatever is
// newest.
func pinned(image string) bool { return release.MatchString(image) }

func root(user string) bool {
	user, _, _ = strings.Cut(user, ":")
	return user == "" || user == "0" || user == "root"
}

func secret(variable string) bool {
	return strings.Contains(variable, "PASSWORD") || strings.HasPrefix(variable, "FENCELINE_POSTGRES_DSN")
}
