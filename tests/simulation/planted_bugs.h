// Bugs and failures that a coordinator could have, planted around a real one, to show what would
// find them and what must not be taken for one.
#pragma once

#include <memory>

#include "tests/simulation/coordinator_host.h"

namespace causeway::simulation {

// A contribution counts again in the next round of its fragment.
std::unique_ptr<Calls> AppliesTwice();
// A contribution is acknowledged, and only then made durable.
std::unique_ptr<Calls> AcknowledgesFirst();
// A push is taken for one of the present incarnation, whatever it says.
std::unique_ptr<Calls> AcceptsStaleIncarnations();
// Not a bug: it fails, as after an error of its disk, once somebody has left and that is saved.
std::unique_ptr<Calls> FailsAfterALeave();

}  // namespace causeway::simulation
