#pragma once
// TVM's wheel leaves this header out; see io.h.
#include <tvm/support/io.h>
