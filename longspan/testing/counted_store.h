// A store of this process that counts the keys that its users ask for.
#pragma once

#include <cstdint>
#include <memory>

namespace c10d {
class Store;
}

namespace longspan::testing {

class CountedStore {
 public:
  CountedStore();
  ~CountedStore();

  c10d::Store& store();
  int64_t num_keys() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan::testing
