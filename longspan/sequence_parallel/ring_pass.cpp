#include "longspan/sequence_parallel/ring_pass.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/zeros_like.h>

#include <span>
#include <utility>

namespace longspan {
namespace {

using Tensors = Rings::Tensors;
using Parts = Rings::Parts;

/// Returns a part that has arrived, or waits for the part. Called once for each part, in order.
using Arrival = std::function<Tensors(size_t part)>;
/// Takes the complete gradients of a part. Called once for each part, in order.
using Departure = std::function<void(size_t part, Tensors gradients)>;

void add_(Tensors& total, Tensors part) {
  if (part.empty()) return;
  if (total.empty()) {
    total = std::move(part);
  } else {
    for (size_t i = 0; i < total.size(); ++i) total[i].add_(part[i]);
  }
}

Tensors zero_gradients(const Tensors& tensors) {
  Tensors zeros;
  for (const at::Tensor& x : tensors) {
    zeros.push_back(at::zeros_like(x, x.options().dtype(at::toOpMathType(x.scalar_type())),
                                   at::MemoryFormat::Contiguous));
  }
  return zeros;
}

Parts all_of(const Arrival& arrive, size_t num_parts) {
  Parts parts;
  for (size_t part = 0; part < num_parts; ++part) parts.push_back(arrive(part));
  return parts;
}

std::vector<Pending> shifted(const Group& ring, const Parts& parts) {
  std::vector<Pending> hop;
  for (const Tensors& part : parts) hop.push_back(ring.shift(part));
  return hop;
}

// `owner`: the digits of the owner's rank in the outer rings.
void forward_pass(std::span<const Group> rings, size_t num_parts, const Arrival& own, int owner,
                  const Rings::ForwardStep& step) {
  if (rings.empty()) {
    for (size_t part = 0; part < num_parts; ++part) step(own(part), owner, part);
    return;
  }
  const Group& ring = rings.front();
  const int R = ring.size();
  const auto visit = [&](int number, const Arrival& arrive) {
    const int from = (ring.rank() - number + R) % R;
    forward_pass(rings.subspan(1), num_parts, arrive, owner * R + from, step);
  };
  if (R == 1) return visit(0, own);
  Parts mine = all_of(own, num_parts);
  std::vector<Pending> next = shifted(ring, mine);
  visit(0, [&](size_t part) { return std::move(mine[part]); });
  for (int number = 1; number < R; ++number) {
    std::vector<Pending> arriving = std::exchange(next, {});
    visit(number, [&](size_t part) {
      Tensors travelling = arriving[part].wait_all();
      if (number + 1 < R) next.push_back(ring.shift(travelling));
      return travelling;
    });
  }
}

void backward_pass(std::span<const Group> rings, size_t num_parts, const Arrival& own, int owner,
                   const Rings::BackwardStep& step, const Departure& depart,
                   std::vector<Pending> first_hop = {}) {
  if (rings.empty()) {
    for (size_t part = 0; part < num_parts; ++part) depart(part, step(own(part), owner, part));
    return;
  }
  const Group& ring = rings.front();
  const int R = ring.size();
  const auto visit = [&](int from, const Arrival& arrive, const Departure& leave,
                         std::vector<Pending> hop = {}) {
    backward_pass(rings.subspan(1), num_parts, arrive, owner * R + from, step, leave,
                  std::move(hop));
  };
  if (R == 1) return visit(0, own, depart, std::move(first_hop));
  Parts mine = all_of(own, num_parts);
  std::vector<Pending> next = first_hop.empty() ? shifted(ring, mine) : std::move(first_hop);
  std::vector<Pending> homeward;
  for (int number = 1; number < R; ++number) {
    std::vector<Pending> arriving = std::exchange(next, {}),
                         returning = std::exchange(homeward, {});
    Parts travelling(num_parts);
    const auto arrive = [&](size_t part) {
      travelling[part] = arriving[part].wait_all();
      if (number + 1 < R) next.push_back(ring.shift(travelling[part]));
      return travelling[part];
    };
    const auto send_home = [&](size_t part, Tensors gradients) {
      if (number > 1) add_(gradients, returning[part].wait_all());
      if (gradients.empty()) gradients = zero_gradients(travelling[part]);
      homeward.push_back(ring.shift(gradients));
      travelling[part].clear();
    };
    visit((ring.rank() - number + R) % R, arrive, send_home);
  }
  visit(
      ring.rank(), [&](size_t part) { return std::move(mine[part]); },
      [&](size_t part, Tensors gradients) {
        add_(gradients, homeward[part].wait_all());
        depart(part, std::move(gradients));
      });
}

}  // namespace

int Rings::rank() const {
  int rank = 0;
  for (const Group& ring : groups_) rank = rank * ring.size() + ring.rank();
  return rank;
}

int Rings::size() const {
  int size = 1;
  for (const Group& ring : groups_) size *= ring.size();
  return size;
}

void Rings::forward(const Parts& own, const ForwardStep& step) const {
  forward_pass(groups_, own.size(), [&](size_t part) { return own[part]; }, 0, step);
}

std::vector<Pending> Rings::start_backward(const Parts& own) const {
  for (const Group& ring : groups_) {
    if (ring.size() > 1) return shifted(ring, own);
  }
  return {};
}

Parts Rings::backward(const Parts& own, const BackwardStep& step,
                      std::vector<Pending> first_hop) const {
  Parts total(own.size());
  const auto keep = [&](size_t part, Tensors gradients) {
    total[part] = gradients.empty() ? zero_gradients(own[part]) : std::move(gradients);
  };
  backward_pass(
      groups_, own.size(), [&](size_t part) { return own[part]; }, 0, step, keep,
      std::move(first_hop));
  return total;
}

}  // namespace longspan
