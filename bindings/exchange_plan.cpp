#include "bindings/exchange_plan.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "bindings/attention_context.h"
#include "bindings/equal_calls.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/process_group.h"

namespace longspan {

std::vector<HeadShare> head_shares(int num_ranks, int64_t num_heads, int64_t num_queries) {
  if (num_heads < 1 || (num_queries != 0 && num_queries % num_heads != 0)) {
    throw UserError(
        fmt::format("exchange of heads: {} heads for {} query heads, and the heads must "
                    "be positive and divide the query heads",
                    num_heads, num_queries));
  }
  const int64_t N = num_queries == 0 ? num_heads : num_queries, each = N / num_heads;
  std::vector<HeadShare> shares;
  bool even = true;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const HeadRange queries = heads_of_rank(rank, num_ranks, N);
    HeadShare& share = shares.emplace_back(HeadShare{heads_that_go_with(queries, N, num_heads)});
    for (int64_t i = 0; i < queries.count; ++i) {
      share.copies.push_back((queries.begin + i) / each - share.heads.begin);
      even = even && queries.count % share.heads.count == 0 &&
             share.copies.back() == i / (queries.count / share.heads.count);
    }
  }
  if (even) {
    for (HeadShare& share : shares) share.copies.clear();
  }
  return shares;
}

int64_t dim_in(const at::Tensor& x, int64_t dim, const char* name) {
  if (dim >= -x.dim() && dim < x.dim()) return dim < 0 ? dim + x.dim() : dim;
  throw UserError(fmt::format("{} is {}, and the tensor has {} dimensions", name, dim, x.dim()));
}

namespace {

struct Dims {
  int64_t seq = 0, head = 0;
};

Dims dims_in(const at::Tensor& x, int64_t seq_dim, int64_t head_dim) {
  const Dims dims{dim_in(x, seq_dim, "seq_dim"), dim_in(x, head_dim, "head_dim")};
  if (dims.seq != dims.head) return dims;
  throw UserError(fmt::format("seq_dim and head_dim are both {}: they must differ", dims.seq));
}

int size_of_group(const std::string& process_group) {
  return process_group.empty() ? 1 : place_in(process_group).size;
}

int rank_in_group(const std::string& process_group) {
  return process_group.empty() ? 0 : place_in(process_group).rank;
}

/// Throws UserError unless a rank has its share of `num_heads` heads.
void check_heads(int64_t heads, int num_ranks, int rank, int64_t num_heads, int64_t num_queries) {
  const int64_t share = head_shares(num_ranks, num_heads, num_queries)[rank].count();
  if (heads == share) return;
  throw UserError(
      fmt::format("heads_to_seq: rank {} of {} passes {} heads, and of {} heads the rank has {}",
                  rank, num_ranks, heads, num_heads, share));
}

ExchangePlan plan_exchange(const Group& group, const Dims& dims, int64_t num_tokens,
                           int64_t num_heads, int64_t num_queries) {
  const std::vector<HeadShare> shares = head_shares(group.size(), num_heads, num_queries);
  ExchangePlan plan{.group = group,
                    .seq_dim = dims.seq,
                    .head_dim = dims.head,
                    .num_tokens = num_tokens,
                    .num_heads = num_heads,
                    .mine = shares[group.rank()],
                    .by_rank = {}};
  for (const HeadShare& share : shares) {
    plan.by_rank.push_back({{share.heads.begin, share.heads.count, 0, num_tokens}});
  }
  return plan;
}

/// Returns N of the heads n of all ranks.
int64_t added_up(int64_t heads, const Group& group) {
  const std::vector<std::string> counts = group.gather_text(fmt::format("{}", heads));
  int64_t sum = 0;
  for (const std::string& count : counts) sum += std::stoll(count);
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t expected = heads_of_rank(rank, group.size(), sum).count;
    if (counts[rank] == fmt::format("{}", expected)) continue;
    throw UserError(fmt::format(
        "heads_to_seq: the ranks have {} heads, and of {} heads rank {} has {}: pass the heads "
        "that seq_to_heads returned",
        fmt::join(counts, ", "), sum, rank, expected));
  }
  return sum;
}

at::Tensor index_of_copies(const ExchangePlan& plan, const at::Tensor& like) {
  return at::tensor(plan.mine.copies, at::kLong).to(like.device());
}

}  // namespace

ExchangePlan plan_to_heads(const at::Tensor& x, const std::string& process_group, int64_t seq_dim,
                           int64_t head_dim, int64_t num_queries, int64_t timeout) {
  const int P = size_of_group(process_group);
  Dims dims;
  const auto check = [&] {
    dims = dims_in(x, seq_dim, head_dim);
    head_shares(P, x.size(dims.head), num_queries);
  };
  require_equal_calls(process_group, x.is_cuda(), timeout, check, [&] {
    return fmt::format("exchanges tokens {} for heads {} of {} {}, {} query heads", dims.seq,
                       dims.head, x.sizes(), c10::toString(x.scalar_type()), num_queries);
  });
  return plan_exchange(group_of(process_group, x.is_cuda(), timeout), dims, x.size(dims.seq) * P,
                       x.size(dims.head), num_queries);
}

ExchangePlan plan_to_seq(const at::Tensor& x, const std::string& process_group, int64_t head_dim,
                         int64_t seq_dim, std::optional<int64_t> num_heads, int64_t num_queries,
                         int64_t timeout) {
  const int P = size_of_group(process_group), rank = rank_in_group(process_group);
  Dims dims;
  const auto check = [&] {
    dims = dims_in(x, seq_dim, head_dim);
    if (x.size(dims.seq) % P != 0) {
      throw UserError(fmt::format("heads_to_seq: {} tokens, which {} ranks do not divide: pad them",
                                  x.size(dims.seq), P));
    }
    if (num_heads) check_heads(x.size(dims.head), P, rank, *num_heads, num_queries);
  };
  require_equal_calls(process_group, x.is_cuda(), timeout, check, [&] {
    std::vector<int64_t> others = x.sizes().vec();  // without the heads, which differ
    others[dims.head] = num_heads.value_or(0);
    return fmt::format("exchanges heads {} for tokens {} of {} {}, {} query heads", dims.head,
                       dims.seq, others, c10::toString(x.scalar_type()), num_queries);
  });
  const int64_t tokens = x.size(dims.seq), heads = x.size(dims.head);
  const Group& group = group_of(process_group, x.is_cuda(), timeout);
  return plan_exchange(group, dims, tokens, num_heads ? *num_heads : added_up(heads, group),
                       num_queries);
}

at::Tensor rows_of(const at::Tensor& x, const ExchangePlan& plan) {
  const int64_t tokens = x.size(plan.seq_dim), heads = x.size(plan.head_dim);
  int64_t elements = 1;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != plan.seq_dim && dim != plan.head_dim) elements *= x.size(dim);
  }
  return x.movedim({plan.seq_dim, plan.head_dim}, {0, 1}).reshape({tokens, heads, elements});
}

at::Tensor laid_out(const at::Tensor& rows, const std::vector<int64_t>& sizes_of_x,
                    const ExchangePlan& plan) {
  std::vector<int64_t> sizes{rows.size(0), rows.size(1)};
  for (int64_t dim = 0; dim < std::ssize(sizes_of_x); ++dim) {
    if (dim != plan.seq_dim && dim != plan.head_dim) sizes.push_back(sizes_of_x[dim]);
  }
  return rows.reshape(sizes).movedim({0, 1}, {plan.seq_dim, plan.head_dim}).contiguous();
}

at::Tensor with_copies(const at::Tensor& x_TnH, const ExchangePlan& plan) {
  return plan.mine.copies.empty() ? x_TnH : x_TnH.index_select(1, index_of_copies(plan, x_TnH));
}

at::Tensor without_copies(const at::Tensor& x_TnH, const ExchangePlan& plan) {
  if (plan.mine.copies.empty()) return x_TnH;
  const auto wide = x_TnH.options().dtype(at::toOpMathType(x_TnH.scalar_type()));
  return at::zeros({x_TnH.size(0), plan.mine.heads.count, x_TnH.size(2)}, wide)
      .index_add(1, index_of_copies(plan, x_TnH), x_TnH.to(wide.dtype()))
      .to(x_TnH.scalar_type());
}

}  // namespace longspan
