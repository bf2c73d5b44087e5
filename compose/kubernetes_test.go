package compose_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// The manifests are read into these, which have the fields that they use and no
// others: a field that is misspelt, or in the wrong place, is refused.
type (
	manifest struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Spec       struct {
			Replicas int
			Strategy struct {
				Type          string
				RollingUpdate struct {
					MaxUnavailable int `yaml:"maxUnavailable"`
					MaxSurge       int `yaml:"maxSurge"`
				} `yaml:"rollingUpdate"`
			}
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata metadata
				Spec     pod
			}
		}
	}
	metadata struct {
		Name                string
		Labels, Annotations map[string]string
	}
	pod struct {
		AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
			RunAsUser      int                   `yaml:"runAsUser"`
			RunAsGroup     int                   `yaml:"runAsGroup"`
			FSGroup        int                   `yaml:"fsGroup"`
			SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		InitContainers []container `yaml:"initContainers"`
		Containers     []container
		Volumes        []struct {
			Name   string
			Secret *struct {
				SecretName  string `yaml:"secretName"`
				DefaultMode int    `yaml:"defaultMode"`
			}
			ConfigMap *struct{ Name string } `yaml:"configMap"`
		}
	}
	container struct {
		Name, Image   string
		RestartPolicy string `yaml:"restartPolicy"`
		Command, Args []string
		Env           []struct {
			Name, Value string
			ValueFrom   *struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe   *probe `yaml:"startupProbe"`
		LivenessProbe  *probe `yaml:"livenessProbe"`
		ReadinessProbe *probe `yaml:"readinessProbe"`
		Resources      struct{ Requests, Limits map[string]string }
		Security       struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
)

func parseManifest(content []byte) (m manifest, err error) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil {
		return m, err
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return m, fmt.Errorf("it has more than one document: %w", err)
	}
	return m, nil
}

func manifests(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../docs/kubernetes/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("manifests are %v, %v", files, err)
	}
	found := map[string]string{}
	for _, f := range files {
		found[filepath.Base(f)] = read(t, f)
	}
	return found
}

// relayOf is the relay's container.
func relayOf(m manifest) (c container, sidecar, ok bool) {
	p := m.Spec.Template.Spec
	for i, c := range append(slices.Clone(p.InitContainers), p.Containers...) {
		if len(c.Command) == 1 && c.Command[0] == "/relay" {
			return c, i < len(p.InitContainers), true
		}
	}
	return c, false, false
}

// manifestInvocations are the command lines of our programs in the manifests.
func manifestInvocations(t *testing.T) (found []invocation) {
	t.Helper()
	for name, content := range manifests(t) {
		m, err := parseManifest([]byte(content))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c, _, ok := relayOf(m)
		if !ok {
			t.Errorf("%s runs no relay", name)
			continue
		}
		var env []string
		for _, e := range c.Env {
			env = append(env, e.Name)
		}
		found = append(found, invocation{name, append(slices.Clone(c.Command), c.Args...), env})
	}
	return found
}

// wrong returns what is wrong with a manifest.
func wrong(content string) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	m, err := parseManifest([]byte(content))
	if err != nil {
		return []string{err.Error()}
	}
	pod := m.Spec.Template.Spec
	if m.APIVersion != "apps/v1" || m.Kind != "Deployment" || m.Metadata.Name == "" {
		complain("it is %s %s %q", m.APIVersion, m.Kind, m.Metadata.Name)
	}
	for k, v := range m.Spec.Selector.MatchLabels {
		if m.Spec.Template.Metadata.Labels[k] != v {
			complain("the selector doesn't match its own Pods")
		}
	}
	if len(m.Spec.Selector.MatchLabels) == 0 {
		complain("the selector is empty")
	}
	if s := pod.SecurityContext; !s.RunAsNonRoot || s.RunAsUser == 0 || s.SeccompProfile.Type != "RuntimeDefault" {
		complain("it may run as root, or without a seccomp profile")
	}
	if a := pod.AutomountServiceAccountToken; a == nil || *a {
		complain("the Pod gets a token for the cluster's API")
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v.Secret != nil || v.ConfigMap != nil
		// The files of a Secret belong to root, and to fsGroup if there is one: its
		// members, which all containers are then, can read them whatever the mode. To
		// say no mode is to say 0644.
		if s := v.Secret; s != nil && s.DefaultMode != 0 && s.DefaultMode&0o004 == 0 && pod.SecurityContext.FSGroup == 0 {
			complain("user %d can't read the files of volume %s: they are root's, their mode is %#o, and the Pod has no fsGroup", pod.SecurityContext.RunAsUser, v.Name, s.DefaultMode)
		}
	}
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		if !pinned(c.Image) {
			complain("%s: image %q isn't pinned to a release", c.Name, c.Image)
		}
		if s := c.Security; s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Contains(s.Capabilities.Drop, "ALL") {
			complain("%s: it has rights that it doesn't need, or a root file system that can be written to", c.Name)
		}
		if c.Resources.Limits["memory"] == "" || c.Resources.Requests["memory"] == "" {
			complain("%s: its memory is not bounded", c.Name)
		}
		for _, v := range c.VolumeMounts {
			if !volumes[v.Name] || !v.ReadOnly {
				complain("%s: volume %s is not there, or can be written to", c.Name, v.Name)
			}
		}
	}
	c, sidecar, ok := relayOf(m)
	if !ok {
		complain("it runs no relay")
		return complaints
	}
	if sidecar != (c.RestartPolicy == "Always") {
		complain("an init container is a sidecar if, and only if, it is always restarted")
	}
	port := map[string]bool{}
	for _, p := range c.Ports {
		port[p.Name] = true
	}
	for name, p := range map[string]struct {
		probe *probe
		path  string
	}{"startup": {c.StartupProbe, "/readyz"}, "liveness": {c.LivenessProbe, "/livez"}, "readiness": {c.ReadinessProbe, "/readyz"}} {
		if p.probe == nil || p.probe.HTTPGet.Path != p.path || !port[p.probe.HTTPGet.Port] {
			complain("the %s probe doesn't ask %s on a port that there is", name, p.path)
		}
	}
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if (e.Name == "FENCELINE_POSTGRES_DSN" || strings.HasSuffix(e.Name, "PASSWORD")) && e.Value != "" {
			complain("%s is a secret, and belongs into a file", e.Name)
		}
	}
	if addr := env["FENCELINE_HTTP"]; len(c.Ports) != 1 || addr != fmt.Sprintf("0.0.0.0:%d", c.Ports[0].ContainerPort) {
		complain("the relay serves on %q, where the kubelet doesn't reach it", addr)
	}
	grace := time.Duration(0)
	for _, a := range c.Args {
		if v, ok := strings.CutPrefix(a, "-grace="); ok {
			if grace, err = time.ParseDuration(v); err != nil {
				complain("-grace: %v", err)
			}
		}
	}
	if left := time.Duration(pod.TerminationGracePeriodSeconds)*time.Second - grace; grace == 0 || left < 10*time.Second {
		complain("the Pod is killed %v after the relay's grace time: that leaves too little for its last checkpoint", left)
	}
	return complaints
}

func TestTheManifestsAreStrictlyWhatTheySay(t *testing.T) {
	for name, content := range manifests(t) {
		for _, complaint := range wrong(content) {
			t.Errorf("%s: %s", name, complaint)
		}
		m, err := parseManifest([]byte(content))
		if err != nil {
			continue
		}
		if _, sidecar, _ := relayOf(m); sidecar != (name == "sidecar.yaml") {
			t.Errorf("%s: sidecar is %v", name, sidecar)
		}
		// The image is the one of the compose file, with its user.
		user := fmt.Sprintf("%d:%d", m.Spec.Template.Spec.SecurityContext.RunAsUser, m.Spec.Template.Spec.SecurityContext.RunAsGroup)
		if got := mustLoad(t).Services["relay"].User; got != user {
			t.Errorf("%s runs as %s, the image as %s", name, user, got)
		}
	}
}

func TestEachMistakeInAManifestIsSeen(t *testing.T) {
	whole, err := os.ReadFile("../docs/kubernetes/sidecar.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"misspelt field":         {"readOnlyRootFilesystem: true", "readonlyRootFilesystem: true", "readonlyRootFilesystem"},
		"field in a wrong place": {"          restartPolicy: Always\n", "          restartPolicy: Always\n          replicas: 3\n", "replicas"},
		"no sidecar":             {"          restartPolicy: Always\n", "", "always restarted"},
		"too little time":        {"terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 12", "too little"},
		"wrong probe":            {"path: /livez", "path: /healthz", "liveness probe"},
		"unknown port":           {"port: relay-http", "port: http", "port that there is"},
		"loopback":               {"0.0.0.0:8081", "127.0.0.1:8081", "doesn't reach it"},
		"root":                   {"runAsNonRoot: true", "runAsNonRoot: false", "run as root"},
		"newest image":           {"fenceline:0.1.0", "fenceline:latest", "pinned"},
		"selector":               {"    matchLabels:\n      app.kubernetes.io/name: catalogue", "    matchLabels:\n      app.kubernetes.io/name: other", "doesn't match"},
		"secret in the open":     {"FENCELINE_POSTGRES_DSN_FILE", "FENCELINE_POSTGRES_DSN", "belongs into a file"},
		"unknown volume":         {"            - name: secret\n              mountPath", "            - name: secrets\n              mountPath", "volume secrets"},
		"secret of root's":       {"        fsGroup: 65532\n", "", "can't read the files of volume secret"},
		"token":                  {"automountServiceAccountToken: false", "automountServiceAccountToken: true", "token"},
		"second document":        {"apiVersion: apps/v1\n", "kind: Other\n---\napiVersion: apps/v1\n", "more than one document"},
	} {
		if !strings.Contains(string(whole), c.old) {
			t.Errorf("%s: sidecar.yaml doesn't contain %q any more", name, c.old)
			continue
		}
		got := strings.Join(wrong(strings.Replace(string(whole), c.old, c.new, 1)), "\n")
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: complaints are %q, want one with %q", name, got, c.want)
		}
	}
}
