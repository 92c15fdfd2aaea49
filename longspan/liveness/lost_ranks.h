// The exception for the loss of other ranks.
#pragma once

#include "longspan/base/user_error.h"

namespace longspan {

/// Thrown on a rank whose collective has failed. The message names the ranks that have ended and,
/// where known, the cause.
class LostRanks : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace longspan
