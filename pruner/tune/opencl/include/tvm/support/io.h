#pragma once
// TVM's wheel leaves this header out. `tvm/runtime/tensor.h` names the class in functions that
// nothing here calls, so a declaration of its interface is enough.
#include <cstddef>

namespace tvm {
namespace support {

class Stream {
 public:
  virtual ~Stream() = default;
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;
  template <class T>
  bool Read(T*) {
    return false;
  }
  template <class T>
  void Write(const T&) {}
  template <class T>
  bool ReadArray(T*, size_t) {
    return false;
  }
  template <class T>
  void WriteArray(const T*, size_t) {}
};

}  // namespace support
}  // namespace tvm
