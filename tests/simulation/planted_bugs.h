// Bugs and failures that a coordinator could have, planted around a real one, to show what would
// find them and what must not be taken for one.
#pragma once

#include <memory>

#include "server/core/coordinator.h"

namespace causeway::simulation {

// A contribution counts again in the next round of its fragment.
std::unique_ptr<server::Coordinator> AppliesTwice(std::unique_ptr<server::Coordinator> real);

// A contribution is acknowledged, and only then made durable.
std::unique_ptr<server::Coordinator> AcknowledgesFirst(std::unique_ptr<server::Coordinator> real);

// A push is taken for one of the present incarnation, whatever it says.
std::unique_ptr<server::Coordinator> AcceptsStaleIncarnations(
    std::unique_ptr<server::Coordinator> real);

// Not a bug: it fails, as after an error of its disk, once somebody has left and that is saved.
std::unique_ptr<server::Coordinator> FailsAfterALeave(std::unique_ptr<server::Coordinator> real);

}  // namespace causeway::simulation
