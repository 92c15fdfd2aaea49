#include "longspan/testing/counted_store.h"

#include <atomic>
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace longspan::testing {
namespace {

class CountingStore : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    ++num_keys;
    return HashStore::get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    num_keys += static_cast<int64_t>(keys.size());
    return HashStore::multiGet(keys);
  }

  std::atomic<int64_t> num_keys{0};
};

}  // namespace

struct CountedStore::Impl {
  CountingStore store;
};

CountedStore::CountedStore() : impl_(std::make_unique<Impl>()) {
  impl_->store.setTimeout(std::chrono::seconds(20));
}

CountedStore::~CountedStore() = default;

c10d::Store& CountedStore::store() { return impl_->store; }
int64_t CountedStore::num_keys() const { return impl_->store.num_keys; }

}  // namespace longspan::testing
