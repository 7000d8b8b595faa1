{{/* Takes an image of somebody else. */}}
{{- define "chainscope.foreignImage" -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}

{{/* The proxy's configuration, and the Explorer's: one entry a node, everything on the page's own origin. */}}
{{- define "chainscope.explorerConfig" -}}
{{- $entries := list -}}
{{- range .Values.explorer.nodes -}}
{{- $name := printf "%s/%s" .namespace .name -}}
{{- $debugger := dict "name" "debugger" "url" (printf "/nodes/%s" $name) -}}
{{- $entry := dict "id" $name "type" "octez" "name" $name "http" (printf "/rpc/%s" $name) "p2p_port" $name "tzstats" "" -}}
{{- $_ := set $entry "features" (list $debugger (dict "name" "network")) -}}
{{- $entries = append $entries $entry -}}
{{- end -}}
Caddyfile: |
  {
    admin off
    auto_https off
    persist_config off
  }
  (aggregator) {
    reverse_proxy {{ if .Values.certificates.apiTls }}https{{ else }}http{{ end }}://{{ include "chainscope.apiHost" . }}:17732 {
      # Read at each request: the kubelet renews it.
      header_up Authorization "Bearer {file./var/run/secrets/chainscope/token}"
      header_up -Cookie
      flush_interval -1
      {{- if .Values.certificates.apiTls }}
      transport http {
        tls_server_name {{ include "chainscope.apiHost" . }}
        tls_trust_pool file /etc/chainscope/ca/ca.crt
      }
      {{- end }}
    }
  }
  :8080 {
    # In this order: outside of a route, Caddy has an order of its own.
    route {
      @writes not method GET HEAD OPTIONS
      respond @writes 405
      handle /proxy-livez {
        respond 200
      }
      handle /proxy-upstream {
        # Needs a token, and shows nothing.
        rewrite * /v2/version
        import aggregator
      }
      {{- range .Values.explorer.nodes }}
      handle /rpc/{{ .namespace }}/{{ .name }}/chains/main/blocks/head/header {
        {{- if .rpc }}
        rewrite * /chains/main/blocks/head/header
        reverse_proxy {{ .rpc }} {
          header_up -Authorization
          header_up -Cookie
        }
        {{- else }}
        # The Explorer opens no page before a head was answered.
        header Content-Type application/json
        respond "{}"
        {{- end }}
      }
      {{- end }}
      handle /rpc/* {
        respond 404
      }
      handle /assets/env.js {
        header Content-Type text/javascript
        root * /etc/caddy
        rewrite * /env.js
        file_server
      }
      @api path /v1/* /v2/* /v3/* /nodes /nodes/* /openapi /openapi/* /openapi.json
      handle @api {
        import aggregator
      }
      handle {
        reverse_proxy 127.0.0.1:{{ .Values.explorer.port }} {
          header_up -Authorization
        }
      }
    }
  }
env.js: |
  window.env = {api: {{ toJson $entries }}};
{{- end -}}
