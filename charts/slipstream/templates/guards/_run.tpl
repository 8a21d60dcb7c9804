{{/* Guards on names, and on a run that is no YAML mapping. The init container `check` compares the run with the values. */}}

{{- define "slipstream.guards.names" -}}
{{- $name := include "slipstream.fullname" . -}}
{{- if gt (len $name) 40 }}
the name `{{ $name }}` has {{ len $name }} characters, and names made from it would be too long: set fullnameOverride to at most 40
{{- else if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
the name `{{ $name }}` cannot be that of a Service, which begins with a letter and has no dot: set fullnameOverride, or name the release otherwise
{{- end }}
{{- end -}}

{{- define "slipstream.guards.run" -}}
{{- $tree := include "slipstream.run.tree" . | fromJson -}}
{{- if not (trim .Values.run.config) }}
run.config is empty: give the run's YAML with --set-file run.config=examples/addition.yaml
{{- else if hasKey $tree "Error" }}
run.config is not a YAML mapping ({{ $tree.Error | replace "\n" " " }}): give the file itself, with --set-file run.config=FILE
{{- end }}
{{- end -}}
