#!/bin/sh
# Without CMake: ./build.sh [python]
set -eu
cd "$(dirname "$0")"
python=${1:-python3}
home=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
abi=$("$python" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
standard=$("$python" -c "import torch; v = torch.__version__; print(14 if v.startswith('1.') else 17 if tuple(map(int, v.split('.')[:2])) < (2, 10) else 20)")
libraries="-ltorch -ltorch_cpu -lc10"
[ -e "$home/lib/libtorch_cuda.so" ] && libraries="$libraries -ltorch_cuda -lc10_cuda"
[ -e "$home/lib/libtorch_hip.so" ] && libraries="$libraries -ltorch_hip -lc10_hip"
${CXX:-g++} -std=c++"$standard" ${CXXFLAGS:--O1} -D_GLIBCXX_USE_CXX11_ABI="$abi" -isystem "$home/include" replay.cpp -o replay \
  -L"$home/lib" -Wl,-rpath,"$home/lib" -Wl,--no-as-needed $libraries -Wl,--allow-shlib-undefined -ldl -lpthread
echo "built $(pwd)/replay"
