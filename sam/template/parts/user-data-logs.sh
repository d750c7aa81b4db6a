logs() { # a log of /var/log/serfer goes to a log group, and is cut off within an hour once it is large
  cat > /etc/logrotate.d/serfer <<END
/var/log/serfer/$1.log {
  su serfer serfer
  size 50M
  rotate 2
  copytruncate
  missingok
}
END
  mkdir -p /etc/systemd/system/logrotate.timer.d
  printf '[Timer]\nOnCalendar=\nOnCalendar=hourly\n' > /etc/systemd/system/logrotate.timer.d/hourly.conf
  cat > /opt/serfer/agent.json <<END
{"agent": {"run_as_user": "cwagent"},
 "logs": {"logs_collected": {"files": {"collect_list": [
   {"file_path": "/var/log/serfer/$1.log", "log_group_name": "$2", "log_stream_name": "{instance_id}"}
 ]}}}}
END
  /opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s -c file:/opt/serfer/agent.json
}
