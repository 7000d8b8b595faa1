{{/* Rules that several policies have. Lists of peers that are empty mean everybody: the field is left out then. */}}
{{- define "chainscope.allowDns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{- define "chainscope.allowApiServer" -}}
- {{ with .Values.networkPolicy.apiServerTo }}to:
    {{- toYaml . | nindent 4 }}
  {{ end }}ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}

{{- define "chainscope.allowMetrics" -}}
- {{ with .Values.networkPolicy.metricsFrom }}from:
    {{- toYaml . | nindent 4 }}
    # `helm test`.
    - podSelector:
        matchLabels:
          {{- include "chainscope.selector" (list $ "test") | nindent 10 }}
  {{ end }}ports:
    - {protocol: TCP, port: metrics}
{{- end }}
