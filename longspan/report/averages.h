// Named means over ranks and steps.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/transfer.h"

namespace longspan {

/// Sums and counts by name. Ranks may have different names.
class Averages {
 public:
  void add(const std::string& name, double sum, double count) {
    auto& [total, number] = sums_[name];
    total += sum;
    number += count;
  }
  /// As the other add(), for device scalars of any dtype. The device may still be computing these
  /// scalars; the host waits only when means or sums are requested.
  void add(const std::vector<std::pair<std::string, at::Tensor>>& sums, double count);
  bool empty() const { return sums_.empty() && arriving_.empty(); }
  /// Returns this rank's sums and counts by name.
  const std::map<std::string, std::pair<double, double>>& sums();
  void set(std::map<std::string, std::pair<double, double>> sums) {
    clear();
    sums_ = std::move(sums);
  }
  void clear() {
    sums_.clear();
    arriving_.clear();
  }
  /// Returns the means over all ranks of `world`, in the order of `names`, without names that have
  /// no values. Collective.
  std::vector<std::pair<std::string, double>> means(const Group& world,
                                                    const std::vector<std::string>& names,
                                                    at::Device device);

 private:
  struct Arriving {
    std::vector<std::string> names;
    ToHost sums;
    double count;
  };
  /// Adds pending sums in the order of their add() calls, so that rounding does not depend on the
  /// device.
  void take_arriving();

  std::map<std::string, std::pair<double, double>> sums_;
  std::vector<Arriving> arriving_;
};

}  // namespace longspan
