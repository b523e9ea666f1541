"""From judgement to advice with a price: what is proposed, to whom it is lent, and what came of it."""
