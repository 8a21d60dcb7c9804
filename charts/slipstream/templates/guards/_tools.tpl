{{/* Guards on the tools of the environments, which the actors call. */}}

{{- define "slipstream.guards.tools" -}}
{{- $root := . -}}
{{- range (include "slipstream.run.tools" . | fromJson).tools -}}
{{- if eq (toString .kind) "mcp" }}
{{- include "slipstream.guards.mcp" (list $root .) }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* A tool server at a URL, or one that an actor starts. Takes (list $ TOOL). */}}
{{- define "slipstream.guards.mcp" -}}
{{- $values := (index . 0).Values -}}
{{- $tool := index . 1 -}}
{{- if $tool.url -}}
{{- $here := regexMatch "^https?://(localhost|127\\.|\\[::1\\])" (toString $tool.url) -}}
{{- if and (not $here) $values.network.policies (not $values.actor.networkPolicy.extraEgress) }}
the run's tool server is {{ $tool.url }}, and the NetworkPolicies let actors out to nothing but the release: set actor.networkPolicy.extraEgress to where that is
{{- end }}
{{- end }}
{{- if $tool.command -}}
{{- $program := base (toString (first $tool.command)) -}}
{{- if and (has $program (list "bun" "bunx" "deno" "docker" "node" "npm" "npx" "pipx" "uv" "uvx")) (not (or $values.image.repository $values.actor.image.repository)) }}
the run's tool server is started by {{ $program }}, which the image slipstream/services has not: set actor.image to one of your own that has it, with the server installed
{{- end }}
{{- end }}
{{- end -}}
