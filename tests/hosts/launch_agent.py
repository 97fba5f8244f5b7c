#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands in for ssh (OMPI_MCA_plm_rsh_agent): enters the host's namespaces. launch_agent.py HOST COMMAND…

SHERD_TEST_HOSTS has the processes that hold them: node1=1234,node2=1240.
"""
import os
import sys

hosts = dict(pair.split("=") for pair in os.environ["SHERD_TEST_HOSTS"].split(","))
words = [word for word in sys.argv[1:] if word not in ("-x", "-n")]
os.execvp("nsenter", ["nsenter", "--target", hosts[words[0]], "--net", "--uts", "--mount", "--wd=" + os.getcwd(),
                      "sh", "-c", " ".join(words[1:])])
