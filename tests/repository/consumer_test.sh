#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the build, then configures, builds and runs a project outside that finds it:
#   consumer_test.sh CMAKE BUILD_FOLDER CONSUMER_SOURCE [CMAKE_ARGUMENTS]
# RUN_RANKS and MPIRUN, if set, start it on two ranks as well.
set -euo pipefail
cmake=$1 build=$2 source=$3
shift 3
work=$build/consumer
rm -rf "$work"
"$cmake" --install "$build" --prefix "$work/prefix" > "$work.log"
"$cmake" -G Ninja -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" "$@"
"$cmake" --build "$work/build"
learned='loss 0\.[01]'  # in its last line; it begins at about 2
"$work/build/consumer" | tail -n 1 | grep "$learned"
if [ -n "${MPIRUN:-}" ]; then
  "$RUN_RANKS" "$MPIRUN" 2 "$work/build/consumer" | tail -n 1 | grep "$learned"
fi
# Nothing that was installed points into the environment that it was built with.
if grep -rnF "$SHERD_PREFIX" "$work/prefix/lib/cmake" "$work/prefix/share"; then exit 1; fi
for file in "$work"/prefix/bin/sherd "$work"/prefix/lib/libsherd.so; do
  if readelf -d "$file" | grep -F "$SHERD_PREFIX"; then exit 1; fi
  if readelf -p .rodata "$file" | grep -F "$SHERD_PREFIX/bin"; then exit 1; fi
done
# Installed into an environment with torch and MPI (here: links to theirs), the program finds them there.
for entry in "$SHERD_PREFIX"/lib/*; do
  [ -e "$work/prefix/lib/${entry##*/}" ] || ln -s "$entry" "$work/prefix/lib/"
done
env -u LD_LIBRARY_PATH "$work/prefix/bin/sherd" version
# Only what is marked SHERD_API is exported: everything in namespace sherd that is not, is hidden.
exported=$(nm -DC --defined-only "$work"/prefix/lib/libsherd.so | grep -c ' sherd::' || true)
hidden=$(nm -DC --defined-only "$work"/prefix/lib/libsherd.so | grep -cE 'sherd::(Engine|JoinPart|PackItem)' || true)
echo "$exported names exported, $hidden of them internal"
[ "$exported" -gt 0 ] && [ "$hidden" -eq 0 ]
