{{/* Guards on the servers and programs of the run's environments and tools, which the actors call or start. */}}

{{- define "slipstream.guards.tools" -}}
{{- range (include "slipstream.run.environments" . | fromJson).environments -}}
{{- include "slipstream.guards.server" (list $ (printf "%s.url" .key) .value.url) }}
{{- include "slipstream.guards.program" (list $ (printf "environment (%s.command)" .key) .value.command) }}
{{- end }}
{{- range (include "slipstream.run.tools" . | fromJson).tools -}}
{{- include "slipstream.guards.server" (list $ "tool server" .url) }}
{{- include "slipstream.guards.program" (list $ "tool server" .command) }}
{{- end }}
{{- end -}}

{{/* A server at a URL, which may be absent. Takes (list $ WHOSE URL). */}}
{{- define "slipstream.guards.server" -}}
{{- $values := (index . 0).Values -}}
{{- $url := index . 2 | default "" | toString -}}
{{- if and $url $values.network.policies (not $values.actor.networkPolicy.extraEgress) -}}
{{- $host := (regexFind "^https?://[^/?#]+" $url | urlParse).hostname | lower -}}
{{- if not (regexMatch "^(localhost|127([.][0-9]+){3}|::1)$" $host) }}
the run's {{ index . 1 }} is {{ $url }}, and the NetworkPolicies let actors out to nothing but the release: set actor.networkPolicy.extraEgress to where that is
{{- end }}
{{- end }}
{{- end -}}

{{/* The program of a command, which may be absent, without a leading env and its arguments. Takes (list $ WHOSE COMMAND). */}}
{{- define "slipstream.guards.program" -}}
{{- $values := (index . 0).Values -}}
{{- $program := "" -}}
{{- $command := index . 2 -}}
{{- range ternary $command (list) (kindIs "slice" $command) -}}
{{- if not (or $program (eq (base (toString .)) "env") (regexMatch "^(-|[^/]*=)" (toString .))) -}}{{- $program = base (toString .) -}}{{- end -}}
{{- end -}}
{{- if and (has $program (list "bun" "bunx" "deno" "docker" "node" "npm" "npx" "pipx" "uv" "uvx")) (not (or $values.image.repository $values.actor.image.repository)) }}
the run's {{ index . 1 }} is started by {{ $program }}, which the image slipstream/services has not: set actor.image to one of your own that has it, and what it starts
{{- end }}
{{- end -}}
