{{- define "gangline.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "gangline.labels" -}}
app.kubernetes.io/name: gangline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels by which pods are selected: (list root component). */}}
{{- define "gangline.selector" -}}
app.kubernetes.io/name: gangline
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* (list root image). */}}
{{- define "gangline.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A table of settings as TOML. JSON's strings, numbers and lists are TOML's. */}}
{{- define "gangline.toml" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}

{{/* The name in the aggregator's certificate. */}}
{{- define "gangline.server" -}}
{{ include "gangline.name" . }}-aggregator.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "gangline.agent.settings" -}}
{{- $agent := .Values.agent -}}
{{- $settings := dict
      "aggregator" ($agent.aggregator | default (printf "%s:7600" (include "gangline.server" .)))
      "spool_folder" "/var/lib/gangline/spool"
      "events_folder" "/var/lib/gangline/events"
      "state_folder" "/var/lib/gangline/state" -}}
{{- if eq .Values.tls.source "none" }}{{ $_ := set $settings "allow_plaintext" true }}
{{- else }}{{ $_ := set $settings "tls_ca_file" "/etc/gangline-tls/ca.crt" }}{{ end -}}
{{- if eq $agent.profile "full" }}{{ $_ := set $settings "dev_root" "/host/dev" }}{{ end -}}
{{- if eq $agent.login.source "host" }}{{ $_ := set $settings "token_file" "/etc/gangline-login/token" }}{{ end -}}
{{- if .Values.monitoring.metrics }}{{ $_ := set $settings "metrics_listen" "0.0.0.0:9476" }}{{ end -}}
{{- include "gangline.toml" (merge (deepCopy $agent.settings) $settings) -}}
{{- end }}

{{- define "gangline.aggregator.settings" -}}
{{- $settings := dict "listen" "0.0.0.0:7600" "data" "/var/lib/gangline-aggregator" -}}
{{- if eq .Values.tls.source "none" }}{{ $_ := set $settings "listen_beyond_loopback" true }}
{{- else }}
{{- $_ := set $settings "tls_certificate_file" "/etc/gangline-tls/tls.crt" }}
{{- $_ := set $settings "tls_key_file" "/etc/gangline-tls/tls.key" }}
{{- end -}}
{{- if .Values.monitoring.metrics }}{{ $_ := set $settings "metrics_listen" "0.0.0.0:9477" }}{{ end -}}
{{- include "gangline.toml" (merge (deepCopy .Values.aggregator.settings) $settings) -}}
{{- end }}
