{{/* Guards on the run's YAML, and on names. */}}

{{- define "slipstream.guards.names" -}}
{{- $name := include "slipstream.fullname" . -}}
{{- if gt (len $name) 40 }}
the name `{{ $name }}` has {{ len $name }} characters, and names made from it would be too long: set fullnameOverride to at most 40
{{- else if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
the name `{{ $name }}` cannot be that of a Service, which begins with a letter and has no dot: set fullnameOverride, or name the release otherwise
{{- end }}
{{- end -}}

{{/* Keys that a run must leave to the chart. */}}
{{- define "slipstream.guards.ownedKeys" -}}
run_dir replay.address replay.redis_url replay.redis_dir replay.redis_username replay.redis_password_file replay.redis_authority
verifier.address verifier.http_address teacher.address learner.address learner.stay learner.checkpoint.stop_seconds rollout.address weights.host weights.port telemetry.host telemetry.port
rpc.tls rpc.plaintext
{{- end -}}

{{- define "slipstream.guards.run" -}}
{{- $tree := include "slipstream.run.tree" . | fromJson -}}
{{- if not (trim .Values.run.config) }}
run.config is empty: give the run's YAML with --set-file run.config=examples/addition.yaml
{{- else if hasKey $tree "Error" }}
run.config is not a YAML mapping ({{ $tree.Error | replace "\n" " " }}): give the file itself, with --set-file run.config=FILE
{{- else }}
{{- if (include "slipstream.run.look" (list . "stages") | fromJson).value }}
run.config has `stages`, which need one machine after the other: run them with `slipstream run`, or install one release for each with the stage's own keys
{{- end }}
{{- range regexSplit "\\s+" (include "slipstream.guards.ownedKeys" .) -1 }}
{{- if (include "slipstream.run.look" (list $ .) | fromJson).found }}
run.config sets {{ . }}, which the chart sets for each pod: leave it out of the run
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The data files of the run must be where replay finds them. */}}
{{- define "slipstream.guards.data" -}}
{{- $data := (include "slipstream.run.look" (list . "data") | fromJson).value -}}
{{- if kindIs "map" $data -}}
{{- $parts := list $data -}}
{{- if eq (toString $data.kind) "mixture" -}}{{- $parts = default list $data.of -}}{{- end -}}
{{- range $part := $parts -}}
{{- if and (kindIs "map" $part) (eq (toString $part.kind) "file") -}}
{{- range $key := list "path" "held_out_path" -}}
{{- $path := toString (default "" (index $part $key)) -}}
{{- $mounts := list -}}
{{- if $.Values.data.existingClaim -}}{{- $mounts = append $mounts $.Values.data.mountPath -}}{{- end -}}
{{- range $.Values.replay.extraVolumeMounts -}}{{- $mounts = append $mounts .mountPath -}}{{- end -}}
{{- $there := false -}}
{{- range $mounts -}}{{- if or (eq $path .) (hasPrefix (printf "%s/" (trimSuffix "/" .)) $path) -}}{{- $there = true -}}{{- end -}}{{- end -}}
{{- if and $path (not $there) }}
the run's data.{{ $key }} is {{ $path }}, where replay has no volume: set data.existingClaim to a claim with the file and the path to one below {{ $.Values.data.mountPath }}, or mount it with replay.extraVolumes and replay.extraVolumeMounts
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
