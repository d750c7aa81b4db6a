#!/bin/bash
# What a driver's instance does when it starts. CloudFormation replaces what stands in braces after a dollar sign.
set -Eeuo pipefail
export AWS_DEFAULT_REGION=${AWS::Region}
metadata=http://169.254.169.254/latest
token=$(curl -sSf -X PUT $metadata/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 300')
instance=$(curl -sSf -H "X-aws-ec2-metadata-token: $token" $metadata/meta-data/instance-id)
signal() {
  aws cloudformation signal-resource --stack-name '${AWS::StackName}' --logical-resource-id Drivers \
    --unique-id "$instance" --status "$1" || true # an instance that only scales out is waited for by nobody
}
trap 'signal FAILURE' ERR

dnf install --quiet --assumeyes @runtime@ amazon-cloudwatch-agent logrotate unzip
useradd --system --user-group --home-dir /var/lib/serfer --shell /sbin/nologin serfer
install --directory --owner serfer --group serfer --mode 0755 /var/lib/serfer /var/log/serfer
install --directory --mode 0755 /opt/serfer
install --owner serfer --group serfer --mode 0644 /dev/null /var/log/serfer/driver.log

@fetch@
fetch '${DriverLayer}'
fetch '${DriverPlans}'

cat > /etc/serfer.env <<'END'
${Environment}
END

# Who may ask. Without a file nobody may; a file that cannot be fetched leaves the one that is there.
echo '{"keys": []}' > /var/lib/serfer/keys.json
cat > /opt/serfer/fetch-keys <<'END'
#!/bin/bash
set -Eeuo pipefail
cd /var/lib/serfer
aws s3 cp --only-show-errors s3://${KeysBucket}/keys.json keys.new
cmp --quiet keys.new keys.json || mv keys.new keys.json
END
chmod 0755 /opt/serfer/fetch-keys
chown serfer:serfer /var/lib/serfer/keys.json

cat > /etc/systemd/system/serfer-keys.service <<'END'
[Unit]
Description=Fetch the keys of those who may ask
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
User=serfer
Environment=AWS_DEFAULT_REGION=${AWS::Region}
ExecStart=/opt/serfer/fetch-keys
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict
ReadWritePaths=/var/lib/serfer
END
cat > /etc/systemd/system/serfer-keys.timer <<'END'
[Unit]
Description=Fetch the keys every minute

[Timer]
OnActiveSec=1
OnUnitActiveSec=60
AccuracySec=5

[Install]
WantedBy=timers.target
END
cat > /etc/systemd/system/serfer.service <<'END'
[Unit]
Description=SerFer driver
After=network-online.target
Wants=network-online.target

[Service]
User=serfer
WorkingDirectory=/opt/serfer
Environment=PYTHONPATH=/opt/serfer/python PYTHONDONTWRITEBYTECODE=1
EnvironmentFile=/etc/serfer.env
ExecStart=/usr/bin/@runtime@ -m serfer.api.entrypoints.daemon --host 0.0.0.0 --port 8000
StandardOutput=append:/var/log/serfer/driver.log
StandardError=append:/var/log/serfer/driver.log
Restart=always
RestartSec=2
# It ends what it has begun, at most 30 s each.
TimeoutStopSec=90
LimitNOFILE=65536
CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
ReadWritePaths=/var/lib/serfer
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
END
@logs@
logs driver '${DriverLog}'

systemctl daemon-reload
systemctl start serfer-keys.service || true
systemctl enable --now serfer-keys.timer serfer.service
systemctl enable --now logrotate.timer || true # a full disk is far away
curl -sSf --output /dev/null --retry 120 --retry-delay 2 --retry-all-errors --max-time 5 http://127.0.0.1:8000/readyz
signal SUCCESS
